"""Prompts, chat rendering, answers, target features and the Lightning datamodule."""
