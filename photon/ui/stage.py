"""The picture before a run, and the references people draw in it. Holds no data of any session."""

from __future__ import annotations

import asyncio
from typing import Any

import gradio as gr

from photon.errors import PhotonError
from photon.images import load_image
from photon.ui import markup, references
from photon.ui.ask import WITH_REFS
from photon.ui.image_input import path_of
from photon.ui.layout import Controls, View
from photon.ui.session import Session
from photon.ui.tasks import prompt_update

Updates = dict[Any, Any]


class Stage:
    """Events of the picture and of its layer of references."""

    def __init__(self, session: gr.State, controls: Controls, view: View) -> None:
        self.session, self.controls, self.view = session, controls, view

    def wire(self, cleared: Any, how: dict[str, Any]) -> None:
        """Connect the events. cleared: the event that emptied the page for another picture."""
        c, v = self.controls, self.view
        picture = [self.session, c.image, c.task]
        last = {**how, "trigger_mode": "always_last"}
        cleared.then(self.preview, picture, [v.picture, v.status, v.refs], **last)
        refs = [self.session, c.task, c.refs]
        follow = [c.prompt, c.length, c.refs, c.clear_refs, v.refs]
        c.task.input(self.choose, [*refs, c.prompt], follow, **how)
        v.refs.click(self.refer, c.refs, c.refs, **how)
        c.clear_refs.click(lambda: "", None, c.refs, **how)
        c.refs.change(self.mark, refs, v.refs, **last)

    async def preview(self, session: Session, file: dict[str, Any] | None, task: str) -> Any:
        """Show the picture that was added, to point at; say at once if it can't be used."""
        path, number, turn, v = path_of(file), session.picture, session.turn, self.view
        if path is None:
            return gr.skip()
        try:
            image = await asyncio.to_thread(load_image, path)
            size, shown = image.size, {v.picture: await asyncio.to_thread(markup.picture, image)}
            shown[v.status] = markup.status("idle", "Press Run.")
        except PhotonError as error:
            size, shown = None, {v.status: markup.status("error", "Not usable", str(error))}
        if session.picture != number:
            return gr.skip()
        session.size = size
        return (shown if session.turn == turn else {}) | {v.refs: layer(session, task, "")}

    def choose(self, session: Session, task: str, refs: str, prompt: str) -> tuple[dict[str, Any] | str, ...]:
        """The controls follow the task."""
        prompt_shown, length, has_refs = prompt_update(task, prompt)
        return prompt_shown, length, has_refs, has_refs, layer(session, task, refs)

    def refer(self, refs: str, event: gr.EventData) -> str:
        """A reference was drawn."""
        return references.added(refs, event._data)

    def mark(self, session: Session, task: str, refs: str) -> Any:
        """The references have changed, whoever did it. Without a picture the layer is empty already."""
        return layer(session, task, refs) if session.size else gr.skip()


def layer(session: Session, task: str, refs: str) -> str:
    """The layer of markers; "" for tasks that take none."""
    return references.markers(refs, session.size) if task in WITH_REFS else ""
