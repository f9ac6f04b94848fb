// Elements, scales and numbers, as all panels draw them.

const SPACE = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((one) => one !== null && one !== undefined));
  return element;
}

export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SPACE, name), attributes, children);
}

// A picture with a name for those who cannot see it.
export function picture(width, height, name, ...children) {
  const box = { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": name };
  return svg("svg", box, ...children);
}

export function linear([low, high], [begin, end]) {
  const span = high - low || 1;
  return (value) => begin + ((value - low) / span) * (end - begin);
}

export function logarithmic([low, high], range) {
  const scale = linear([Math.log(low), Math.log(high)], range);
  return (value) => scale(Math.log(Math.max(value, low)));
}

// A path through points, interrupted where one is missing.
export function path(points) {
  let drawing = false;
  let text = "";
  for (const [x, y] of points) {
    if (y === null || Number.isNaN(y)) {
      drawing = false;
      continue;
    }
    text += `${drawing ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    drawing = true;
  }
  return text;
}

// 1, 2 and 5 times powers of ten within two numbers.
export function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
    for (const digit of [1, 2, 5]) {
      const value = digit * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found;
}

// About so many round numbers from 0 to a greatest.
export function rounds(greatest, count) {
  const rough = greatest / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= rough);
  const found = [];
  for (let value = 0; value <= greatest * 1.0001; value += step) found.push(value);
  return found;
}

// Three digits that count.
export function digits(value, count = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  // Numbers have twenty digits behind the point at most.
  const size = Math.max(-17, Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", {
    maximumFractionDigits: Math.max(0, count - 1 - size),
    minimumFractionDigits: Math.max(0, Math.min(count - 1 - size, count)),
  });
}

export function plain(value) {
  return digits(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${plain(value * 1e6)} µs`;
  if (value < 1) return `${plain(value * 1e3)} ms`;
  return `${plain(value)} s`;
}

export function percent(share) {
  return `${plain(share * 100)} %`;
}

export function signed(value) {
  return `${value < 0 ? "−" : "+"}${plain(Math.abs(value))}`;
}

export function clock(moment) {
  return new Date(moment * 1000).toLocaleTimeString("en-GB");
}

// How many seconds are drawn: all that is known, of a minute at least and 15 at most.
export function since(times) {
  return Math.min(900, Math.max(60, times.at(-1) - times[0]));
}

export function back(ago) {
  return ago < 120 ? `−${Math.round(ago)} s` : `−${plain(Math.round(ago / 6) / 10)} min`;
}

// The width that a panel has, in pixels.
export function room(element, least = 240) {
  return Math.max(least, Math.floor(element.clientWidth));
}

// Terms and their values.
export function numbers(list, pairs) {
  list.replaceChildren(
    ...pairs.map(([term, value, beside]) =>
      html("div", {}, html("dt", {}, term),
        html("dd", {}, value, beside ? html("small", {}, ` ${beside}`) : null))),
  );
}
