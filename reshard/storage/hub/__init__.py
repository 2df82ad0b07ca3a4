"""Repositories of the Hugging Face hub as places with files, through huggingface_hub."""
