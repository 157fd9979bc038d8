// Elements by id, made and filled. Data only ever becomes text or an attribute, never markup.

export const byId = (id) => document.getElementById(id);

export function on(element, types, listener) {
  for (const type of types.split(" ")) element.addEventListener(type, listener);
}

const filled = (element, attributes, children) => {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

export const make = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);

export const makeSvg = (name, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

// Writing the same text again would make screen readers repeat it and undo a selection.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function set(element, attribute, value) {
  if (element.getAttribute(attribute) !== String(value)) element.setAttribute(attribute, value);
}

// As many children as there is to show; those that are there already stay.
export function grow(parent, n, create) {
  while (parent.children.length > n) parent.lastChild.remove();
  while (parent.children.length < n) parent.append(create());
  return [...parent.children];
}

// A button that is of no use now keeps the focus it may have; `disabled` would throw it away.
export const setUsable = (button, usable) => set(button, "aria-disabled", !usable);
export const isUsable = (button) => button.getAttribute("aria-disabled") !== "true";
