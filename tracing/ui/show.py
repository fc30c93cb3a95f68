"""What a button in HTML does to show a trace, or a step of it, in the docked timeline.

<button data-source="ID" data-title="run.json.gz">          in a gr.HTML with js_on_load=SHOW_JS
<button data-source="ID" data-title="run.json.gz" data-step="41">
"""

SHOW_JS = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-source]'), timeline = window.photonTimeline;
  if (!button || !timeline) return;
  const {source, title, step} = button.dataset;
  if (timeline.source !== source || step === undefined) timeline.open(source, title);
  const select = () => (timeline.loading ? setTimeout(select, 50) : timeline.select(Number(step)));
  if (step !== undefined) select();
  document.querySelector('#timeline').scrollIntoView({behavior: 'smooth'});
});
"""
