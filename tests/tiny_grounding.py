"""Grounding DINO, SAM and SAM 2 at a tiny size with random weights, as folders."""

import torch
from transformers import (
    BertConfig,
    BertTokenizer,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessorPil,
    Sam2Config,
    Sam2HieraDetConfig,
    Sam2Model,
    Sam2VisionConfig,
    SamConfig,
    SamImageProcessorPil,
    SamModel,
    SwinConfig,
    ViTImageProcessorPil,
)

SIDE = 64
WORDS = "a red blue small dog cat car taco duck lemon palm tree horse".split()
# Grounding DINO tells phrases apart by BERT's own numbers of these.
NUMBERS = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, ".": 1012, "?": 1029}


def tokenizer(folder):
    """BERT's, of WORDS and letters."""
    named = {number: token for token, number in NUMBERS.items()}
    pieces = [*WORDS, *map(chr, range(97, 123)), *(f"##{chr(n)}" for n in range(97, 123))]
    named |= {2000 + place: token for place, token in enumerate(dict.fromkeys(pieces))}
    vocabulary = [named.get(number, f"[unused{number}]") for number in range(2100)]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return BertTokenizer.from_pretrained(folder)


def detector(folder):
    torch.manual_seed(0)
    config = GroundingDinoConfig(
        backbone_config=SwinConfig(
            image_size=SIDE, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 2, 2, 2],
            window_size=2, out_indices=[2, 3, 4],
        ),
        text_config=BertConfig(
            vocab_size=2100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16,
        ),
        d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=12,
    )  # fmt: skip
    GroundingDinoForObjectDetection(config).eval().save_pretrained(folder)
    size = {"shortest_edge": 2 * SIDE, "longest_edge": 4 * SIDE}
    GroundingDinoImageProcessorPil(size=size).save_pretrained(folder)
    tokenizer(folder).save_pretrained(folder)
    return folder


def sam(folder):
    torch.manual_seed(0)
    config = SamConfig(
        vision_config={
            "hidden_size": 16, "output_channels": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": SIDE, "patch_size": 8, "window_size": 2,
            "global_attn_indexes": [0], "num_pos_feats": 8, "initializer_range": 0.02,
        },
        prompt_encoder_config={
            "hidden_size": 16, "image_size": SIDE, "patch_size": 8, "mask_input_channels": 4,
        },
        mask_decoder_config={
            "hidden_size": 16, "mlp_dim": 16, "num_attention_heads": 2, "iou_head_hidden_dim": 16,
        },
    )  # fmt: skip
    SamModel(config).eval().save_pretrained(folder)
    sides = {"height": SIDE, "width": SIDE}
    SamImageProcessorPil(size={"longest_edge": SIDE}, pad_size=sides).save_pretrained(folder)
    return folder


def sam2(folder):
    torch.manual_seed(0)
    hiera = Sam2HieraDetConfig(
        hidden_size=8, image_size=[SIDE, SIDE], window_positional_embedding_background_size=[2, 2],
        blocks_per_stage=[1, 1, 2, 1], embed_dim_per_stage=[8, 16, 32, 64],
        num_attention_heads_per_stage=[1, 1, 2, 2], window_size_per_stage=[8, 4, 4, 4],
        global_attention_blocks=[3],
    )  # fmt: skip
    config = Sam2Config(
        vision_config=Sam2VisionConfig(
            backbone_config=hiera, backbone_channel_list=[64, 32, 16, 8], fpn_hidden_size=16,
            backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
        ),
        prompt_encoder_config={
            "hidden_size": 16, "image_size": SIDE, "patch_size": 16, "mask_input_channels": 4,
        },
        mask_decoder_config={
            "hidden_size": 16, "mlp_dim": 16, "num_attention_heads": 2, "iou_head_hidden_dim": 16,
        },
    )  # fmt: skip
    Sam2Model(config).eval().save_pretrained(folder)
    processor = ViTImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )  # fmt: skip
    processor.save_pretrained(folder)
    return folder
