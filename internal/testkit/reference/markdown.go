package reference

import (
	"fmt"
	"strconv"
	"strings"
)

// Table writes a table.
func Table(header []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		b.WriteString("|")
		for _, c := range cells {
			b.WriteString(" " + cell(c) + " |")
		}
		b.WriteString("\n")
	}
	line(header)
	b.WriteString("|" + strings.Repeat(" --- |", len(header)) + "\n")
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

// cell keeps a text on one line and within its column.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", "\\|")
}

// Code marks a word as code; nothing stays nothing.
func Code(s string) string {
	if s == "" {
		return ""
	}
	if strings.Contains(s, "`") {
		return "`` " + s + " ``"
	}
	return "`" + s + "`"
}

// Codes marks each word as code and joins them with commas.
func Codes(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = Code(w)
	}
	return strings.Join(out, ", ")
}

// Text keeps a text as it is where Markdown would read tags and emphasis.
func Text(s string) string {
	return strings.NewReplacer("<", "\\<", "*", "\\*").Replace(s)
}

// Block is a block of code.
func Block(language, text string) string {
	return fmt.Sprintf("```%s\n%s\n```\n", language, strings.Trim(text, "\n"))
}

// Sentence begins with an upper-case letter and ends with a full stop.
func Sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	if first := s[0]; first >= 'a' && first <= 'z' {
		s = string(first-'a'+'A') + s[1:]
	}
	if !strings.ContainsAny(s[len(s)-1:], ".:!?") {
		s += "."
	}
	return s
}

// unquote reads a quoted string of Go.
func unquote(s string) string {
	out, err := strconv.Unquote(s)
	if err != nil {
		return s
	}
	return out
}
