"""Vision of a policy: images to tokens and patches, and those into a vision-language model.

`processor.py` says how many tokens an image is and cuts it into patches, `encoder_cache.py` has a
vision tower make features of them, `model.py` feeds those to the text half of a Hugging Face
model. The record of a run holds images and expanded tokens, never pixels.
"""
