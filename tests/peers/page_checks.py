"""Window sizes, and scripts that find faults of a page in a browser."""

WIDE, NARROW = (1440, 900), (420, 860)

LOW_CONTRASTS = """
(() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const background = (element) => {
    for (let node = element; node; node = node.parentElement) {
      const [r, g, b, a] = rgba(getComputedStyle(node).backgroundColor);
      if (a === 255) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((each) => each / 255)
      .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const texts = [...element.childNodes].filter((each) => each.nodeType === 3);
    const hasText = texts.some((each) => each.textContent.trim());
    if (!hasText || !element.checkVisibility() || element.closest(".unseen, :disabled")) continue;
    const front = luminance(rgba(getComputedStyle(element).color));
    const back = luminance(background(element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${element.outerHTML.slice(0, 90)}`);
  }
  return [...new Set(low)];
})()
"""
UNLABELED = """
[...document.querySelectorAll("input, select, textarea, button, [tabindex='0'], svg, img, table")]
  .filter((each) => each.checkVisibility() && !each.closest("[aria-hidden=true]"))
  .filter((each) => !(each.labels?.length || each.ariaLabel || each.alt === "" || each.alt
    || each.title || each.textContent.trim() || each.getAttribute("aria-labelledby")))
  .map((each) => each.outerHTML.slice(0, 100))
"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
