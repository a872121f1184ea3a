package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// table is a listing for people: columns with a header. On a terminal, the last column is wrapped to
// the terminal's width: below its heading if there is room, else below its row.
type table struct {
	out   io.Writer
	width int // of the terminal, 0: nothing is wrapped
	shown []bool
	rows  [][]string
}

// newTable begins a table. A heading that begins with + is of a column that -verbose shows only.
func newTable(out io.Writer, header ...string) *table { return (&apiClient{out: out}).table(header...) }

func (c *apiClient) table(header ...string) *table {
	t := &table{out: c.out, width: c.terminal.width}
	cells := make([]any, len(header))
	for i, h := range header {
		name, verbose := strings.CutPrefix(h, "+")
		cells[i] = name
		t.shown = append(t.shown, !verbose || c.verbose)
	}
	t.row(cells...)
	return t
}

// oneLine keeps what others wrote, as errors of Nomad, within its cell.
var oneLine = strings.NewReplacer("\t", " ", "\r", "", "\n", " ")

// row adds a row. An empty cell is shown as a dash.
func (t *table) row(cells ...any) {
	var texts []string
	for i, c := range cells {
		if t.shown[i] {
			texts = append(texts, dash(oneLine.Replace(fmt.Sprint(c))))
		}
	}
	t.rows = append(t.rows, texts)
}

// narrowest is the least room for the last column beside the others.
const narrowest = 20

func (t *table) flush() error {
	const margin = "  "
	last := len(t.rows[0]) - 1
	widths := make([]int, last)
	for _, r := range t.rows {
		for i := range widths {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	indent := 0
	for _, w := range widths {
		indent += w + len(margin)
	}
	// Where names are too long, they stand above the other columns.
	stacked := t.width > 0 && last > 0 && indent > t.width
	if stacked {
		indent -= widths[0]
	}
	var b strings.Builder
	for _, r := range t.rows {
		line := ""
		for j, w := range widths {
			if stacked && j == 0 {
				b.WriteString(r[0] + "\n")
				line = margin
			} else {
				line += fmt.Sprintf("%-*s", w+len(margin), r[j])
			}
		}
		text := r[last]
		switch room := t.width - indent; {
		case t.width == 0 || utf8.RuneCountInString(text) <= room:
		case room >= narrowest:
			text = strings.TrimLeft(wrapTo(t.width, strings.Repeat(" ", indent), text), " ")
		case text != "-": // below the row
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line, text = "", wrapTo(t.width, "    ", text)
		default:
			text = ""
		}
		b.WriteString(strings.TrimRight(line+text, " ") + "\n")
	}
	_, err := io.WriteString(t.out, b.String())
	return err
}

// fields are the facts of one thing for people, one a line. On a terminal, values are wrapped.
type fields struct {
	out   io.Writer
	width int
	names []string
	texts []string
}

func newFields(out io.Writer) *fields { return &fields{out: out} }

func (c *apiClient) fields() *fields { return &fields{out: c.out, width: c.terminal.width} }

func (f *fields) set(name string, value any) {
	f.names, f.texts = append(f.names, name), append(f.texts, dash(fmt.Sprint(value)))
}

// setIf sets a field unless its value is empty.
func (f *fields) setIf(name, value string) {
	if value != "" {
		f.set(name, value)
	}
}

func (f *fields) flush() error {
	widest := 0
	for _, n := range f.names {
		widest = max(widest, utf8.RuneCountInString(n))
	}
	for i, text := range f.texts {
		if f.width > 0 && widest+3+utf8.RuneCountInString(text) > f.width {
			text = strings.TrimLeft(wrapTo(f.width, strings.Repeat(" ", widest+3), text), " ")
		}
		if _, err := fmt.Fprintf(f.out, "%-*s = %s\n", widest, f.names[i], text); err != nil {
			return err
		}
	}
	return nil
}

// age writes how long ago something was, and a dash for what never was.
func age(t time.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// clock writes when something was, and a dash for what never was.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.RFC3339)
}

// plural writes a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
