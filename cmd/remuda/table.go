package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// table is a listing for people: columns with a header.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer, header ...string) *table {
	t := &table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(t.w, strings.Join(header, "\t"))
	return t
}

// oneLine keeps what others wrote, as errors of Nomad, within its cell.
var oneLine = strings.NewReplacer("\t", " ", "\r", "", "\n", " ")

// row adds a row. An empty cell is shown as a dash.
func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = dash(oneLine.Replace(fmt.Sprint(c)))
	}
	fmt.Fprintln(t.w, strings.Join(texts, "\t"))
}

func (t *table) flush() error { return t.w.Flush() }

// fields are the facts of one thing for people, one a line.
type fields struct{ w *tabwriter.Writer }

func newFields(out io.Writer) *fields {
	return &fields{tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)}
}

func (f *fields) set(name string, value any) {
	fmt.Fprintf(f.w, "%s\t= %s\n", name, dash(fmt.Sprint(value)))
}

// setIf sets a field unless its value is empty.
func (f *fields) setIf(name, value string) {
	if value != "" {
		f.set(name, value)
	}
}

func (f *fields) flush() error { return f.w.Flush() }

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
