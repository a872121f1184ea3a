package main

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// width is the maximum width of texts for people: that of the smallest terminal.
const width = 80

// leastWidth is of terminals that are too narrow for any table.
const leastWidth = 40

// terminal is what the output can show.
type terminal struct {
	// colour: control sequences for colours are supported, and not turned off.
	colour bool
	// blocks: characters beyond ASCII can be shown.
	blocks bool
	// width is how many columns it has: COLUMNS if that is set, else those of the terminal. It is 0
	// for what is neither, as a file, where lines may have any length.
	width int
	// height is how many lines it has, 0 if that is unknown.
	height int
	// controls: control sequences move its cursor.
	controls bool
}

// terminalOf returns what out can show. Colours are used only on a terminal, and unless NO_COLOR is
// set (https://no-color.org).
func terminalOf(out io.Writer, env func(string) string) terminal {
	t := terminal{}
	if n, err := strconv.Atoi(env("COLUMNS")); err == nil && n > 0 {
		t.width = max(n, leastWidth)
	}
	f, ok := out.(*os.File)
	if !ok {
		return t
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return t
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		size = &unix.Winsize{Col: width}
	}
	if t.height = int(size.Row); t.width == 0 {
		t.width = max(int(size.Col), leastWidth)
	}
	if env("TERM") == "" || env("TERM") == "dumb" {
		return t
	}
	locale := env("LC_ALL")
	for _, name := range []string{"LC_CTYPE", "LANG"} {
		if locale == "" {
			locale = env(name)
		}
	}
	locale = strings.ToUpper(locale)
	t.controls = true
	t.colour = env("NO_COLOR") == ""
	t.blocks = strings.Contains(locale, "UTF-8") || strings.Contains(locale, "UTF8")
	return t
}

// wrap breaks a text into lines of the width, each with the indent. A word that is longer than a
// line is broken.
func wrap(indent, text string) string { return wrapTo(width, indent, text) }

// wrapParagraphs wraps paragraphs that blank lines separate. One with a line that is indented, as an
// example, stays as it is.
func wrapParagraphs(text string) string {
	all := strings.Split(text, "\n\n")
	for i, one := range all {
		if !strings.Contains("\n"+one, "\n ") {
			all[i] = wrap("", one)
		}
	}
	return strings.Join(all, "\n\n")
}

// wrapTo is wrap for lines of another width.
func wrapTo(width int, indent, text string) string {
	var lines []string
	line := indent
	for _, word := range strings.Fields(text) {
		for {
			sep := " "
			if line == indent {
				sep = ""
			}
			if len([]rune(line+sep+word)) <= width {
				line += sep + word
				break
			}
			if line != indent {
				lines, line = append(lines, line), indent
				continue
			}
			most := width - len([]rune(indent))
			runes := []rune(word)
			lines, word = append(lines, indent+string(runes[:most])), string(runes[most:])
		}
	}
	if line != indent {
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
