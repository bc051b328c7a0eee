// Markdown to DOM nodes, block by block. A line is {s: its text, o: where it begins in the source}: containers (quotes,
// list items) take their marks away and hand the rest on.

import { Placed, inline, putPlain } from "./inline.js";

const DEPTH = 12; // of quotes and lists within each other
const FENCE = /^( {0,3})(`{3,}(?=[^`]*$)|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:_[ \t]*){3,}|(?:\*[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)|$)/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const BLANK = /^[ \t]*$/;

/** Shows a text that grows: what has not changed since the last time keeps its nodes. */
export class Document {
  constructor(element) {
    this.element = element;
    this.sources = [];
    this.tinted = null;
  }

  /** Show `text`, tinted by `tint` (or null). Tints of text that has been shown must not change. */
  update(text, tint = null) {
    if (!tint !== !this.tinted) this.clear();
    this.tinted = tint;
    const found = blocks(split(text), 0);
    const sources = found.map((block) => block.source);
    let same = 0;
    while (same < sources.length && sources[same] === this.sources[same]) same++;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    for (const block of found.slice(same)) this.element.append(block.make(tint));
    this.sources = sources;
  }

  clear() {
    this.element.replaceChildren();
    this.sources = [];
  }
}

function split(text) {
  let at = 0;
  return text.split("\n").map((s) => {
    const line = { s: s.endsWith("\r") ? s.slice(0, -1) : s, o: at };
    at += s.length + 1;
    return line;
  });
}

function cut(line, n) {
  return { s: line.s.slice(n), o: line.o + n };
}

/** How many columns of space a line begins with. */
function indent(s) {
  let n = 0;
  for (const c of s) {
    if (c === " ") n++;
    else if (c === "\t") n += 4 - (n % 4);
    else break;
  }
  return n;
}

/** A line without `n` columns of space. */
function outdent(line, n) {
  let [column, i] = [0, 0];
  for (; column < n && i < line.s.length; i++) {
    if (line.s[i] === " ") column++;
    else if (line.s[i] === "\t") column += 4 - (column % 4);
    else break;
  }
  return cut(line, i);
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

/** What interrupts a paragraph. */
function interrupts(s) {
  const item = ITEM.exec(s);
  return FENCE.test(s) || HEADING.test(s) || RULE.test(s) || QUOTE.test(s) || (item && item[3] && /^([-*+]|1[.)])$/.test(item[2]));
}

/** The blocks of some lines: {source: what it is made of, make(tint): its node, paragraph: whether it is one}. */
function blocks(lines, depth) {
  const out = [];
  let i = 0;
  const add = (from, make, paragraph = false) => {
    out.push({ source: lines.slice(from, i).map((l) => l.s).join("\n"), make, paragraph });
  };
  while (i < lines.length) {
    const from = i;
    const { s } = lines[i];
    const fence = FENCE.exec(s);
    const heading = HEADING.exec(s);
    if (BLANK.test(s)) {
      i++;
    } else if (fence) {
      const close = new RegExp(`^ {0,3}${fence[2][0]}{${fence[2].length},}[ \\t]*$`);
      i++;
      while (i < lines.length && !close.test(lines[i].s)) i++;
      const body = lines.slice(from + 1, i).map((line) => (fence[1] ? outdent(line, fence[1].length) : line));
      i = Math.min(i + 1, lines.length);
      add(from, (tint) => code(body, fence[3], tint));
    } else if (heading) {
      i++;
      const rest = cut(lines[from], heading[0].length);
      const line = { s: rest.s.replace(/(?:^|[ \t]+)#+[ \t]*$/, "").trimEnd(), o: rest.o };
      add(from, (tint) => text(`h${heading[1].length}`, [line], tint));
    } else if (RULE.test(s)) {
      i++;
      add(from, () => element("hr"));
    } else if (QUOTE.test(s) && depth < DEPTH) {
      const inner = [];
      for (; i < lines.length && !BLANK.test(lines[i].s); i++) {
        const mark = QUOTE.exec(lines[i].s);
        if (!mark && interrupts(lines[i].s)) break;
        inner.push(mark ? cut(lines[i], mark[0].length) : lines[i]);
      }
      add(from, (tint) => element("blockquote", ...blocks(inner, depth + 1).map((b) => b.make(tint))));
    } else if (ITEM.test(s) && depth < DEPTH) {
      const list = items(lines, i);
      i = list.end;
      add(from, (tint) => listNode(list, depth, tint));
    } else if (i + 1 < lines.length && s.includes("|") && DIVIDER.test(lines[i + 1].s) && lines[i + 1].s.includes("|")) {
      i += 2;
      while (i < lines.length && !BLANK.test(lines[i].s) && lines[i].s.includes("|")) i++;
      const rows = lines.slice(from, i);
      add(from, (tint) => table(rows, tint));
    } else if (indent(s) >= 4) {
      while (i < lines.length && (indent(lines[i].s) >= 4 || BLANK.test(lines[i].s))) i++;
      while (BLANK.test(lines[i - 1].s)) i--;
      const body = lines.slice(from, i).map((line) => outdent(line, 4));
      add(from, (tint) => code(body, "", tint));
    } else {
      i++;
      while (i < lines.length && !BLANK.test(lines[i].s) && !interrupts(lines[i].s)) i++;
      const body = lines.slice(from, i);
      add(from, (tint) => text("p", body, tint), true);
    }
  }
  return out;
}

/** Lines of running text in an element. */
function text(name, lines, tint) {
  const placed = new Placed();
  lines.forEach((line, i) => {
    const blank = line.s.length - line.s.trimStart().length;
    const last = i === lines.length - 1;
    const shown = last ? line.s.trimEnd() : line.s;
    placed.add(shown.slice(blank), line.o + blank);
    if (!last) placed.add("\n", line.o + line.s.length);
  });
  const made = element(name);
  inline(made, placed, tint);
  return made;
}

/** A code block with its language and a button that copies it. */
function code(lines, language, tint) {
  const body = element("code");
  lines.forEach((line, i) => {
    putPlain(body, line.s, line.o, tint);
    if (i < lines.length - 1) body.append("\n");
  });
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.className = "quiet copy-code";
  copy.setAttribute("aria-label", "Copy the code");
  const head = element("div", element("span", language), copy);
  head.className = "code-head";
  const pre = element("pre", body);
  pre.tabIndex = 0; // long lines scroll, from the keyboard as well
  const made = element("div", head, pre);
  made.className = "code";
  return made;
}

/** The list that begins at line `i`: its items' lines, and where it ends. */
function items(lines, i) {
  const first = ITEM.exec(lines[i].s);
  const kind = (mark) => mark.slice(-1);
  const list = { ordered: /\d/.test(first[2]), start: parseInt(first[2], 10), items: [], loose: false, end: i };
  while (i < lines.length) {
    const mark = ITEM.exec(lines[i].s);
    if (!mark || kind(mark[2]) !== kind(first[2]) || RULE.test(lines[i].s)) break;
    const room = mark[3] && indent(mark[3]) <= 4 ? mark[0].length : mark[1].length + mark[2].length + 1;
    const inner = [cut(lines[i], Math.min(room, lines[i].s.length))];
    let blank = false;
    let fenced = false;
    for (i++; i < lines.length; i++) {
      const { s } = lines[i];
      if (BLANK.test(s)) {
        inner.push(cut(lines[i], s.length));
        blank = true;
        continue;
      }
      const inside = indent(s) >= room;
      if (!inside && (blank || fenced || interrupts(s) || ITEM.test(s))) break;
      const line = inside ? outdent(lines[i], room) : lines[i];
      if (FENCE.test(line.s)) fenced = !fenced;
      if (blank && !fenced && !ITEM.test(line.s)) list.loose = true;
      inner.push(line);
      blank = false;
    }
    list.items.push(inner);
    list.end = i;
    if (blank) {
      const next = i < lines.length ? ITEM.exec(lines[i].s) : null;
      if (next && kind(next[2]) === kind(first[2]) && indent(lines[i].s) < 4) list.loose = true;
    }
  }
  return list;
}

function listNode(list, depth, tint) {
  const made = element(list.ordered ? "ol" : "ul");
  if (list.ordered && list.start !== 1) made.start = list.start;
  for (const lines of list.items) {
    const item = element("li");
    const task = /^\[([ xX])\] /.exec(lines[0].s);
    if (task) {
      const box = element("input");
      box.type = "checkbox";
      box.disabled = true;
      box.checked = task[1] !== " ";
      item.append(box, " ");
      item.className = "task";
    }
    for (const block of blocks(task ? [cut(lines[0], 4), ...lines.slice(1)] : lines, depth + 1)) {
      const node = block.make(tint);
      if (block.paragraph && !list.loose) item.append(...node.childNodes);
      else item.append(node);
    }
    made.append(item);
  }
  return made;
}

/** The cells of a row as lines. */
function cells(line) {
  const out = [];
  let start = 0;
  let ticks = false;
  const add = (end) => {
    const part = line.s.slice(start, end);
    out.push({ s: part.trim(), o: line.o + start + part.length - part.trimStart().length });
    start = end + 1;
  };
  for (let i = 0; i < line.s.length; i++) {
    const c = line.s[i];
    if (c === "\\") i++;
    else if (c === "`") ticks = !ticks && line.s.includes("`", i + 1);
    else if (c === "|" && !ticks) add(i);
  }
  add(line.s.length);
  if (out.length && !out[0].s) out.shift();
  if (out.length && !out[out.length - 1].s) out.pop();
  return out;
}

function table(lines, tint) {
  const sides = cells(lines[1]).map(({ s }) => (s.endsWith(":") ? (s.startsWith(":") ? "center" : "right") : ""));
  const row = (line, name, width) => {
    const found = cells(line);
    const made = element("tr");
    for (let i = 0; i < width; i++) {
      const cell = text(name, [found[i] ?? { s: "", o: line.o }], tint);
      if (sides[i]) cell.className = sides[i];
      made.append(cell);
    }
    return made;
  };
  const body = lines.slice(2).map((line) => row(line, "td", sides.length));
  const made = element("table", element("thead", row(lines[0], "th", sides.length)), element("tbody", ...body));
  const box = element("div", made);
  box.className = "table";
  box.tabIndex = 0;
  return box;
}
