"""GPT-2 in the format of Hugging Face: its tensors, and folders of them."""
