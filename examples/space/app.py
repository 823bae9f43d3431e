"""A space on a hub: the maps of words in a picture, by Gradio.

Needs pixalign and gradio (`pip install gradio`). MODEL is a hub id; without it the embedded model
answers.
"""

import os

import gradio as gr

import pixalign as pa

model = pa.load(os.environ.get("MODEL"))


def show(image, words, threshold):
    """The picture with its mask, and what is said of each word."""
    if image is None:
        raise gr.Error("Choose a picture first.")
    try:
        classes = [word.strip() for word in words.split(",") if word.strip()]
        result = model.align(image, classes, config=pa.AlignConfig.fast())
    except ValueError as error:
        raise gr.Error(str(error)) from error
    verdicts = zip(result.classes, result.trust, strict=True)
    return result.overlay(threshold), "\n".join(f"{name}: {trust}" for name, trust in verdicts)


page = gr.Interface(
    show,
    [
        gr.Image(type="pil", label="Picture"),
        gr.Textbox(label="Words", placeholder="dog, hot dog, traffic light"),
        gr.Slider(0, 1, 0.4, label="Threshold"),
    ],
    [gr.Image(label="Where each word is"), gr.Textbox(label="How far to trust it")],
    title="pixalign: where a model puts each word",
    flagging_mode="never",
)

if __name__ == "__main__":
    page.launch()
