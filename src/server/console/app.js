// Lists the sessions of the host.
const list = document.querySelector("#sessions");
const problem = document.querySelector("#problem");

const response = await fetch("../v1/sessions");
const body = await response.json();
if (response.ok) {
  for (const session of body.sessions) {
    const item = document.createElement("li");
    item.textContent = `${session.id} (${session.state})`;
    list.append(item);
  }
} else {
  problem.textContent = body.error.message;
}
