// Inline Markdown to DOM nodes. Nothing is ever parsed as HTML: text becomes text nodes, and only the elements named
// here are made. A text is a string with the place of each of its characters in the source, so that the lens knows who
// drafted it.

const DEPTH = 16; // of emphasis within emphasis
const LINK_TEXT = 1000;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", hellip: "…", ndash: "–", mdash: "—" };
const ESCAPED = /[!-/:-@[-`{-~]/;
const BARE = /https?:\/\/[^\s<>"'`\u0000-\u001f]{1,2000}/y;
const ANGLE = /<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>/y;
const TARGET = /\(\s*(?:<([^<>\n]{0,2000})>|((?:[^\s()\\]|\\.|\([^\s()]{0,500}\)){0,2000}))(?:\s+(?:"[^"]{0,500}"|'[^']{0,500}'))?\s*\)/y;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,6}));/y;
const BREAK = /<br\s*\/?>/iy;

/** The tints: who drafted which stretch of a source. `runs` are [length, drafter or null] from its beginning. */
export class Tint {
  constructor(runs) {
    let end = 0;
    this.ends = runs.map(([length]) => (end += length));
    this.names = runs.map(([, name]) => name);
  }

  /** The stretch that `at` lies in: its end, and who drafted it. */
  find(at) {
    let low = 0;
    let high = this.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ends[middle] > at) high = middle;
      else low = middle + 1;
    }
    return low < this.ends.length ? [this.ends[low], this.names[low]] : [Infinity, null];
  }
}

const KNOWN = ["model", "ngram", "suffix", "lookahead", "medusa", "prediction", "forced"];

/** The class of a drafter's colour: names that are not known take the others' in turn. */
export function tintClass(name) {
  let at = KNOWN.indexOf(name);
  if (at < 0) at = [...name].reduce((sum, c) => sum + c.codePointAt(0), 0) % KNOWN.length;
  return `d${at}`;
}

/** Text with places; `places[i]` is where its i-th character stands in the source. */
export class Placed {
  constructor() {
    this.text = "";
    this.places = [];
  }

  add(text, at) {
    for (let i = 0; i < text.length; i++) this.places.push(at + i);
    this.text += text;
    return this;
  }
}

/** Put `text` into `parent`, in tints if there are any. `places(k)`: where the k-th character stands. */
function put(parent, text, places, tint) {
  if (!tint) {
    parent.append(text);
    return;
  }
  for (let i = 0; i < text.length; ) {
    const [end, name] = tint.find(places(i));
    let j = i + 1;
    while (j < text.length && places(j) < end) j++;
    const part = text.slice(i, j);
    if (name === null) parent.append(part);
    else {
      const mark = document.createElement("span");
      mark.className = `drafted ${tintClass(name)}`;
      mark.title = `guessed by ${name}`;
      mark.append(part);
      parent.append(mark);
    }
    i = j;
  }
}

/** A stretch of the source as it is. */
export function putPlain(parent, text, at, tint) {
  put(parent, text, (k) => at + k, tint);
}

/** A link, if it leads to where links may lead; a browser would run others as scripts. */
function link(url) {
  if (!/^(https?:\/\/|mailto:)/i.test(url)) return null;
  const a = document.createElement("a");
  try {
    a.href = new URL(url).href;
  } catch {
    return null;
  }
  a.target = "_blank";
  a.rel = "noopener noreferrer";
  return a;
}

/** Inline Markdown of `placed` into `parent`. */
export function inline(parent, placed, tint) {
  new Inline(placed, tint).range(parent, 0, placed.text.length, 0);
}

class Inline {
  constructor(placed, tint) {
    this.text = placed.text;
    this.places = placed.places;
    this.tint = tint;
  }

  put(parent, from, to) {
    if (to > from) put(parent, this.text.slice(from, to), (k) => this.places[from + k], this.tint);
  }

  /** The characters `from` to `to`. What has no end once has none further on either, so nothing is looked for twice. */
  range(parent, from, to, depth) {
    const { text } = this;
    const missing = new Set();
    let start = from; // of the text that is not written yet
    let i = from;
    const flush = (until, next) => {
      this.put(parent, start, until);
      start = i = next;
    };
    while (i < to) {
      const c = text[i];
      if (c === "\\" && i + 1 < to && (ESCAPED.test(text[i + 1]) || text[i + 1] === "\n")) {
        flush(i, i + 1);
        if (text[i] === "\n") {
          parent.append(document.createElement("br"));
          start = ++i;
        } else i++;
      } else if (c === "\n") {
        let end = i;
        while (end > start && text[end - 1] === " ") end--;
        const hard = i - end >= 2;
        flush(end, i + 1);
        parent.append(hard ? document.createElement("br") : "\n");
      } else if (c === "`") {
        const n = this.length(i, to);
        const end = missing.has(`\`${n}`) ? -1 : this.closing(i + n, to, n);
        if (end < 0) {
          missing.add(`\`${n}`);
          i += n;
        } else {
          let [a, b] = [i + n, end];
          flush(i, end + n);
          const code = document.createElement("code");
          if (text[a] === " " && text[b - 1] === " " && text.slice(a, b).trim()) [a, b] = [a + 1, b - 1];
          this.put(code, a, b);
          parent.append(code);
        }
      } else if ((c === "*" || c === "_" || c === "~") && depth < DEPTH) {
        const n = this.length(i, to);
        const found = this.emphasis(i, n, to, missing);
        if (!found) i += n;
        else {
          const [size, end] = found;
          const inner = i + size;
          flush(i, end + size);
          const names = c === "~" ? ["del"] : size === 3 ? ["em", "strong"] : size === 2 ? ["strong"] : ["em"];
          let element = parent;
          for (const name of names) element = element.appendChild(document.createElement(name));
          this.range(element, inner, end, depth + 1);
        }
      } else if (c === "[" || (c === "!" && text[i + 1] === "[")) {
        const open = c === "!" ? i + 1 : i;
        const found = this.link(open, to);
        if (!found) i = open + 1;
        else {
          const [close, url, end] = found;
          flush(i, end);
          const a = link(url);
          // An image would be a request to another host: it becomes a link.
          const element = a ?? document.createElement("span");
          if (c === "!" && close === open + 1) element.append(url);
          else this.range(element, open + 1, close, Math.max(depth + 1, a ? DEPTH - 4 : 0));
          if (!a && url) element.append(` (${url})`);
          parent.append(element);
        }
      } else if (c === "<") {
        const angle = this.match(ANGLE, i, to);
        const br = angle ? null : this.match(BREAK, i, to);
        if (br) {
          flush(i, i + br[0].length);
          parent.append(document.createElement("br"));
        } else if (angle && link(angle[1])) {
          const at = i;
          flush(i, i + angle[0].length);
          const a = link(angle[1]);
          this.put(a, at + 1, at + angle[0].length - 1);
          parent.append(a);
        } else i++;
      } else if (c === "h" && !/\w/.test(text[i - 1] ?? " ") && !parent.closest?.("a")) {
        const found = this.match(BARE, i, to);
        const url = found && trimmed(found[0]);
        const a = url && link(url);
        if (!a) i++;
        else {
          const at = i;
          flush(i, i + url.length);
          this.put(a, at, at + url.length);
          parent.append(a);
        }
      } else if (c === "&") {
        const found = this.match(ENTITY, i, to);
        const value = found && character(found);
        if (!value) i++;
        else {
          const at = i;
          flush(i, i + found[0].length);
          put(parent, value, () => this.places[at], this.tint);
        }
      } else i++;
    }
    this.put(parent, start, to);
  }

  match(pattern, at, to) {
    pattern.lastIndex = at;
    const found = pattern.exec(this.text);
    return found && at + found[0].length <= to ? found : null;
  }

  /** How often the character at `i` is repeated. */
  length(i, to) {
    let n = 1;
    while (i + n < to && this.text[i + n] === this.text[i]) n++;
    return n;
  }

  /** Where the `n` backticks that close a code span stand, or -1. */
  closing(from, to, n) {
    for (let i = from; i < to; ) {
      if (this.text[i] !== "`") i++;
      else {
        const found = this.length(i, to);
        if (found === n) return i;
        i += found;
      }
    }
    return -1;
  }

  /** [number of marks, where the closing ones stand] of emphasis that opens at `i`, or null. */
  emphasis(i, n, to, missing) {
    const { text } = this;
    const mark = text[i];
    const after = text[i + n];
    if (i + n >= to || /\s/.test(after) || (mark === "_" && /\w/.test(text[i - 1] ?? " "))) return null;
    for (const size of mark === "~" ? (n === 2 ? [2] : []) : n >= 3 ? [3, 1, 2] : [n]) {
      if (n > 3 || missing.has(mark + size)) continue;
      for (let j = i + n; j < to; ) {
        if (text[j] === "\\") j += 2;
        else if (text[j] === "`") {
          const ticks = this.length(j, to);
          const key = `\`${ticks}`;
          const end = missing.has(key) ? -1 : this.closing(j + ticks, to, ticks);
          if (end < 0) missing.add(key);
          j = end < 0 ? j + ticks : end + ticks;
        } else if (text[j] === mark) {
          const found = this.length(j, to);
          const closes = !/\s/.test(text[j - 1]) && (mark !== "_" || !/\w/.test(text[j + found] ?? " "));
          if (closes && (size === 1 ? found !== 2 : found >= size)) return [size, j + found - size];
          j += found;
        } else j++;
      }
      missing.add(mark + size);
    }
    return null;
  }

  /** [its closing bracket, the address, where it ends] of the link that opens at `i`, or null. */
  link(i, to) {
    let open = 0;
    for (let j = i; j < to && j - i < LINK_TEXT; j++) {
      const c = this.text[j];
      if (c === "\\") j++;
      else if (c === "[") open++;
      else if (c === "]" && --open === 0) {
        const found = this.match(TARGET, j + 1, to);
        return found && [j, (found[1] ?? found[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1"), j + 1 + found[0].length];
      }
    }
    return null;
  }
}

/** An address in running text ends before the sentence's own marks, and before a bracket that it did not open. */
function trimmed(url) {
  for (;;) {
    const last = url[url.length - 1];
    const shut = last === ")" && url.split("(").length < url.split(")").length;
    if (!shut && !/[.,;:!?*_~\]]/.test(last)) return url;
    url = url.slice(0, -1);
  }
}

function character([, decimal, hex, name]) {
  if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : null;
  const code = decimal ? Number(decimal) : parseInt(hex, 16);
  return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : null;
}
