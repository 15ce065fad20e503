// Shows what a page shows by now, without loading it anew; without scripts the page loads itself.
"use strict";

(() => {
    const shown = document.getElementById("sg-live");
    const said = document.getElementById("sg-said");
    const every = shown ? Number(shown.dataset.everySeconds) * 1000 : 0;

    let heard = new Date(), tenths = null;

    // Told to who cannot see it, too; the same again is not said again.
    function say(text, style) {
        const last = said.firstElementChild;
        if (last && last.textContent === text) {
            return;
        }
        const line = document.createElement("p");
        line.className = style;
        line.textContent = text;
        said.replaceChildren(line);
    }

    // Each tenth of the way: a voice that says every step says nothing else.
    function sayProgress() {
        const bar = shown.querySelector("progress");
        const now = bar ? Math.floor(10 * bar.value / bar.max) : tenths;
        if (tenths !== null && now !== tenths) {
            say(`${bar.value} of ${bar.max} letters dealt with`, "visually-hidden");
        } else if (shown.classList.contains("sg-stale")) {
            say("The server answers again", "visually-hidden");
        }
        tenths = now;
    }

    // Only what is another by now: a row in which somebody copies an id, or stands with the keyboard, stays as it is.
    function show(page) {
        const now = page.getElementById("sg-live");
        const rows = shown.querySelectorAll(".form-row"), newer = now.querySelectorAll(".form-row");
        if (rows.length !== newer.length) {
            shown.innerHTML = now.innerHTML;
        } else {
            rows.forEach((row, at) => replace(row, newer[at]));
        }
        const buttons = document.querySelector(".sg-buttons"), possible = page.querySelector(".sg-buttons");
        if (names(buttons) !== names(possible)) {
            buttons.innerHTML = possible.innerHTML;
        }
    }

    function replace(row, newer) {
        if (row.innerHTML !== newer.innerHTML) {
            row.innerHTML = newer.innerHTML;
        }
    }

    function names(buttons) {
        return [...buttons.querySelectorAll("input[type=submit]")].map((each) => each.value).join();
    }

    async function look() {
        if (document.hidden) {
            return;
        }
        try {
            const answer = await fetch(window.location.href, { credentials: "same-origin" });
            if (answer.status >= 500) {
                throw new Error("the server is away");
            }
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            const now = page.getElementById("sg-live");
            if (!answer.ok || !now || !now.dataset.everySeconds) {
                // It is over, or somebody else has to log in: the buttons below are no longer true.
                window.location.reload();
                return;
            }
            show(page);
            heard = new Date();
            sayProgress();
            shown.classList.remove("sg-stale");
        } catch (error) {
            // Away for a moment: what stands here is what was known last.
            shown.classList.add("sg-stale");
            const time = heard.toISOString().slice(11, 19);
            say(`The server does not answer: this is what was known at ${time} UTC.`, "sg-notice");
        }
    }

    if (every) {
        sayProgress();
        window.setInterval(look, every);
    }
})();
