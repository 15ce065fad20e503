// Shows what a page shows by now, without loading it anew; without scripts the page loads itself.
"use strict";

(() => {
    const shown = document.getElementById("sg-live");
    const every = shown ? Number(shown.dataset.everySeconds) * 1000 : 0;

    async function look() {
        if (document.hidden) {
            return;
        }
        try {
            const answer = await fetch(window.location.href, { credentials: "same-origin" });
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            const now = page.getElementById("sg-live");
            if (!answer.ok || !now || !now.dataset.everySeconds) {
                // It is over, or somebody else has to log in: the buttons below are no longer true.
                window.location.reload();
                return;
            }
            shown.innerHTML = now.innerHTML;
            shown.classList.remove("sg-stale");
        } catch (error) {
            // Away for a moment: what stands here is what was known last.
            shown.classList.add("sg-stale");
        }
    }

    if (every) {
        window.setInterval(look, every);
    }
})();
