"""Kolors."""

import sys
from types import SimpleNamespace
from unittest.mock import patch

import torch
from diffusers import EulerDiscreteScheduler
from diffusers.pipelines.kolors import tokenizer as kolors_tokenizer
from diffusers.pipelines.kolors.pipeline_kolors import KolorsPipeline
from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig, ChatGLMModel
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace

from tiny import SD_NOISE, WORDS, finished, seeded, small_vae
from zoo import Case
from zoo.sdxl_like import GUIDED, PLAIN, xl_unet


@seeded(78)
def kolors() -> KolorsPipeline:
    """Kolors: native 64 px, 1,100 noise levels, a projection before the text's layers."""
    tokenizer, hidden = chatglm_tokenizer(), 32
    config = ChatGLMConfig(
        num_layers=2, padded_vocab_size=len(tokenizer), hidden_size=hidden, ffn_hidden_size=32,
        kv_channels=16, num_attention_heads=2, seq_length=256, multi_query_attention=True,
        original_rope=True,
    )  # fmt: skip
    text_encoder = ChatGLMModel(config, empty_init=False)
    torch.nn.init.normal_(text_encoder.get_input_embeddings().weight, std=0.03)
    for name, weight in text_encoder.named_parameters():
        if "norm" in name:  # left as memory has them
            torch.nn.init.ones_(weight)
    unet = xl_unet(
        hidden, encoder_hid_dim=hidden, encoder_hid_dim_type="text_proj", cross_attention_dim=24
    )
    noise = {**SD_NOISE, "beta_end": 0.014, "num_train_timesteps": 1100}
    pipe = KolorsPipeline(
        vae=small_vae(latent_channels=4, scaling_factor=0.13025),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=EulerDiscreteScheduler(**noise, steps_offset=1, timestep_spacing="leading"),
    )
    return finished(pipe)


class Pieces:
    """What sentencepiece, which is not needed by anything else, does for a tokenizer."""

    def __init__(self, model_file: str) -> None:
        letters = [chr(code) for code in range(0x21, 0x7F)]
        pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁", -2.0)]
        pieces += [("▁" + word, -3.0) for word in WORDS] + [(sign, -6.0) for sign in letters]
        pieces += [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
        self.model = Tokenizer(Unigram(pieces, unk_id=0, byte_fallback=True))
        self.model.pre_tokenizer = Metaspace()
        self.vocab_size = self.get_piece_size = self.model.get_vocab_size
        self.IdToPiece, self.PieceToId = self.model.id_to_token, self.model.token_to_id

    def unk_id(self) -> int:
        return 0

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return 2

    def EncodeAsPieces(self, text: str) -> list[str]:
        return self.model.encode(text).tokens


def chatglm_tokenizer() -> kolors_tokenizer.ChatGLMTokenizer:
    """ChatGLM's slow tokenizer: each of WORDS is one token, others are spelled, or in bytes."""
    with (
        patch.dict(sys.modules, sentencepiece=SimpleNamespace(SentencePieceProcessor=Pieces)),
        patch.object(kolors_tokenizer, "is_sentencepiece_available", lambda: True),
    ):
        return kolors_tokenizer.ChatGLMTokenizer(__file__)  # any file that is there


CASES = {"kolors": Case(kolors, PLAIN, GUIDED)}
