// Shows the values of a chart under the pointer. The page is whole without it.
for (const svg of document.querySelectorAll("svg.chart")) {
  const curves = JSON.parse(svg.dataset.curves);
  const hover = svg.querySelector(".hover");
  const readout = document.createElement("div");
  readout.className = "readout";
  svg.parentElement.append(readout);
  const clear = () => { readout.textContent = ""; hover.replaceChildren(); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) * svg.viewBox.baseVal.width) / box.width;
    const nearest = curves.map((curve) =>
      curve.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a)));
    const first = nearest.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    const values = nearest.map((point, number) => `${curves[number].label} ${point[3]}`);
    readout.textContent = `${svg.dataset.x} ${first[2]}: ${values.join(", ")}`;
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of [["x1", first[0]], ["x2", first[0]], ["y1", 26], ["y2", 222]]) {
      line.setAttribute(name, value);
    }
    hover.replaceChildren(line);
  });
  svg.addEventListener("pointerleave", clear);
}
