// Questions to the page's own server: what it tells, or what is wrong in a sentence.

export async function answered(path, given) {
  try {
    const answer = await fetch(path, given);
    const told = await answer.json();
    return answer.ok ? { told } : { wrong: told.error, status: answer.status };
  } catch (error) {
    if (error.name === "AbortError") return { aborted: true };
    return { wrong: "The page's server does not answer" };
  }
}

export function posted(path, content, given = {}) {
  const headers = { "Content-Type": "application/json", ...given.headers };
  return answered(path, { ...given, method: "POST", headers, body: JSON.stringify(content) });
}
