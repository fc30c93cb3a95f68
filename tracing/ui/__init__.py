"""Gradio side of the workbench; nothing outside this folder imports it, except app.py."""
