// The theme makes a landmark of each code block's copy button, all without a name; a button needs none.
const bare = () => document.querySelectorAll("nav.md-code__nav:not([role])").forEach((nav) => nav.setAttribute("role", "none"));
new MutationObserver(bare).observe(document.body, { childList: true, subtree: true });
bare();
