"""Recipes, as package data: each YAML file opens with the command that runs it."""
