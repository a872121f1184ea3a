// Package documents reads the commands in the project's documents, for tests that check and run them.
//
// The info string of a fenced block says what it has: "sh", every line is a command; "console", those after a
// prompt are, and the rest is what they print; "hcl file=NAME", a file that later commands read. A block whose
// commands cannot run on a cluster of the simulator says why: "sh not-run: REASON".
package documents

import (
	"slices"
	"strings"
)

// Block is a fenced block.
type Block struct {
	// Info is the whole info string, and Line the number of the line that has it.
	Info  string
	Line  int
	Lines []string
}

// Command is a command line. One that goes over several lines is joined.
type Command struct {
	Line int
	Text string
}

// Line is a line outside of blocks.
type Line struct {
	Number int
	Text   string
}

// Parse splits a Markdown document.
func Parse(text string) (blocks []Block, prose []Line) {
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && !fenced:
			blocks = append(blocks, Block{Info: strings.TrimSpace(info), Line: i + 1})
			fenced = true
		case fence:
			fenced = false
		case fenced:
			b := &blocks[len(blocks)-1]
			b.Lines = append(b.Lines, line)
		default:
			prose = append(prose, Line{i + 1, line})
		}
	}
	return blocks, prose
}

// File is the name of the file that the block has, empty if it has none.
func (b Block) File() string {
	for _, word := range strings.Fields(b.Info) {
		if name, ok := strings.CutPrefix(word, "file="); ok {
			return name
		}
	}
	return ""
}

// NotRun is why the block's commands are not run, empty if they are.
func (b Block) NotRun() string {
	_, reason, _ := strings.Cut(b.Info, "not-run: ")
	return reason
}

// Commands returns the block's commands. A block without an info string has some if it has a prompt, or if its
// first line begins with one of the programs.
func (b Block) Commands(programs []string) []Command {
	kind, _, _ := strings.Cut(b.Info, " ")
	all := kind == "sh"
	if kind == "" && len(b.Lines) > 0 {
		word, _, _ := strings.Cut(b.Lines[0], " ")
		all = slices.Contains(programs, word) && !strings.HasPrefix(b.Lines[0], "remuda dev:") // what that prints
	}
	if !all && kind != "" && kind != "console" {
		return nil
	}
	var found []Command
	for i := 0; i < len(b.Lines); i++ {
		number := b.Line + 1 + i
		text, prompt := strings.CutPrefix(b.Lines[i], "$ ")
		if !prompt && !all || strings.TrimSpace(text) == "" {
			continue
		}
		for i+1 < len(b.Lines) && (strings.HasSuffix(text, "\\") || openQuote(text)) {
			i++
			text = strings.TrimSuffix(text, "\\") + strings.TrimSpace(b.Lines[i])
		}
		found = append(found, Command{number, text})
	}
	return found
}

// openQuote reports whether a quote goes on in the next line. A comment may have an apostrophe.
func openQuote(text string) bool {
	command, _, _ := strings.Cut(text, " #")
	return strings.Count(command, "'")%2 == 1
}
