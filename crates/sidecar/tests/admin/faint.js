const light = colour => {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map(part => {
    part /= 255;
    return part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4;
  });
  return .2126 * r + .7152 * g + .0722 * b;
};
const contrast = (one, other) => {
  const [less, more] = [light(one), light(other)].sort((a, b) => a - b);
  return (more + .05) / (less + .05);
};
const behind = node => {
  for (let at = node; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/, 0\)$/.test(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const faint = [];
for (const node of document.querySelectorAll('body *:not(script)')) {
  const style = getComputedStyle(node);
  const text = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
  // The small arrow on a bar is drawn on what is beside it in the tree.
  if (text && node.offsetParent && !node.matches('.beyond') && contrast(style.color, behind(node)) < 4.5) faint.push(node.textContent);
  const stage = node.matches('.track i:not(.failed)');
  if (stage && contrast(style.backgroundColor, behind(node.closest('section'))) < 3) faint.push(node.className);
}
return faint;
