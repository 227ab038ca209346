"""Vision of a policy: images to tokens and patches, and those into a vision-language model.

`processor.py` says how many tokens an image is and cuts it into patches, `model.py` feeds patches
to a Hugging Face model. The record of a run holds images and expanded tokens, never pixels.
"""
