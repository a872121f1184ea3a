package main

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// width is what is drawn for people fits into: that of the smallest terminal.
const width = 80

// canvas is what may be drawn with.
type canvas struct {
	// colour: control sequences for colours are understood, and wanted.
	colour bool
	// blocks: characters beyond ASCII can be shown.
	blocks bool
}

// canvasOf finds out what out can show. Colours are for terminals alone, and for people
// who want them (https://no-color.org).
func canvasOf(out io.Writer, env func(string) string) canvas {
	f, ok := out.(*os.File)
	if !ok || env("TERM") == "" || env("TERM") == "dumb" {
		return canvas{}
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return canvas{}
	}
	locale := env("LC_ALL")
	for _, name := range []string{"LC_CTYPE", "LANG"} {
		if locale == "" {
			locale = env(name)
		}
	}
	locale = strings.ToUpper(locale)
	return canvas{colour: env("NO_COLOR") == "", blocks: strings.Contains(locale, "UTF-8") || strings.Contains(locale, "UTF8")}
}

// wrap breaks a text into lines of the width, all of them after the indent. Words are
// broken where they are longer than a line.
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
