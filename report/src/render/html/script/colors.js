// Colours come from the style sheet, so that light and dark are decided in one place.

const LIBRARY_COLORS = 8;

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const numbered = (name, length) => Array.from({ length }, (_, at) => value(`--${name}-${at}`));
  const family = getComputedStyle(document.body).fontFamily;
  const colors = {
    causes: numbered("cause", CAUSES.length),
    // The last one is for no library.
    libraries: [...numbered("library", LIBRARY_COLORS), value("--library-none")],
    font: `12px ${family}`,
    headingFont: `600 10.5px ${family}`,
  };
  for (const name of ["text", "faint", "grid", "surface", "path", "select", "arrow", "counter", "counterFill", "onSlice"]) {
    colors[name] = value(`--${name}`);
  }
  return colors;
}
