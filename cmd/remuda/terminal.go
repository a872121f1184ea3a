package main

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// width is the maximum width of output for people: that of the smallest terminal.
const width = 80

// terminal is what the output can show.
type terminal struct {
	// colour: control sequences for colours are supported, and not turned off.
	colour bool
	// blocks: characters beyond ASCII can be shown.
	blocks bool
}

// terminalOf returns what out can show. Colours are used only on a terminal, and unless NO_COLOR is
// set (https://no-color.org).
func terminalOf(out io.Writer, env func(string) string) terminal {
	f, ok := out.(*os.File)
	if !ok || env("TERM") == "" || env("TERM") == "dumb" {
		return terminal{}
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return terminal{}
	}
	locale := env("LC_ALL")
	for _, name := range []string{"LC_CTYPE", "LANG"} {
		if locale == "" {
			locale = env(name)
		}
	}
	locale = strings.ToUpper(locale)
	return terminal{colour: env("NO_COLOR") == "", blocks: strings.Contains(locale, "UTF-8") || strings.Contains(locale, "UTF8")}
}

// wrap breaks a text into lines of the width, each with the indent. A word that is longer than a
// line is broken.
func wrap(indent, text string) string {
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
