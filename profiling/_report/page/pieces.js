// Which piece of a tensor each place of the mesh holds: arithmetic only.

// One entry a dim: { axes, ways, size, length }; `length` is what a piece has of it.
function splitOf(tensor, mesh) {
  const sizeOf = (axis) => mesh.shape[mesh.axis_names.indexOf(axis)] || 1;
  return tensor.shape.map((size, dim) => {
    const axes = entryAxes((tensor.spec || [])[dim]);
    const ways = axes.reduce((product, axis) => product * sizeOf(axis), 1);
    return { axes, ways, size, length: Math.ceil(size / ways) };
  });
}

// For each dim the index of the piece at a place: { fsdp: 3, tensor: 1 } -> [3, 0].
// A dim over ("a", "b") counts row-major: a=1, b=2 of sizes 2, 4 is piece 6.
function pieceAt(place, split, mesh) {
  return split.map(({ axes }) => axes.reduce((index, axis) =>
    index * mesh.shape[mesh.axis_names.indexOf(axis)] + (place[axis] || 0), 0));
}

// Row-major number of a piece among all.
const pieceNumber = (piece, split) =>
  piece.reduce((number, index, dim) => number * split[dim].ways + index, 0);

const numPieces = (split) => split.reduce((product, { ways }) => product * ways, 1);

// [1, 0] -> "[512:1024, :]"; a piece beyond the end of a dim is all padding.
function rangeText(piece, split) {
  const dims = split.map(({ ways, size, length }, dim) => {
    if (ways === 1) return ":";
    const from = piece[dim] * length, to = Math.min(size, from + length);
    return from >= size ? "padding" : `${from}:${to}`;
  });
  return `[${dims.join(", ")}]`;
}

// Indices of an axis to draw: all of a short one, else the first ones, a gap (-1), the last.
function indicesOf(size, most) {
  if (size <= most) return Array.from({ length: size }, (_, i) => i);
  return [...Array.from({ length: most - 2 }, (_, i) => i), -1, size - 1];
}

// Which axes a picture of the mesh has. Those that hold copies are left out where there
// are too many devices to draw; those beyond three are drawn at 0.
function axesToDraw(mesh, split, mostCells = 128) {
  const used = new Set(split.flatMap(({ axes }) => axes));
  let drawn = mesh.axis_names
    .map((name, i) => ({ name, size: mesh.shape[i], used: used.has(name) }))
    .filter((axis) => axis.size > 1);
  const folded = [], fixed = [];
  const cells = () => drawn.reduce((product, axis) => product * axis.size, 1);
  while ((cells() > mostCells || drawn.length > 3) && drawn.some((axis) => !axis.used)) {
    const largest = drawn.filter((axis) => !axis.used).sort((a, b) => b.size - a.size)[0];
    folded.push(largest);
    drawn = drawn.filter((axis) => axis !== largest);
  }
  while (drawn.length > 3) fixed.push(drawn.shift());
  return { drawn, folded, fixed };
}
