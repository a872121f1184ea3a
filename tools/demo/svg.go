package main

import (
	"bytes"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/vt"
)

// Sizes in pixels.
const (
	charWidth  = 8.43
	lineHeight = 19
	margin     = 14
	titleBar   = 26
	frameEvery = 50 * time.Millisecond
)

// span is a line of the screen from a time to a time.
type span struct {
	x, y       float64
	text       string // tspans
	from, till time.Duration
}

// draw makes an animation that repeats. Each line of a screen is drawn once for each of its contents, and is
// visible while the screen had it. Who wants no motion sees the end.
func draw(length time.Duration, terminals ...*terminal) []byte {
	var spans []span
	var frames bytes.Buffer
	y := 0.0
	width := 0.0
	for _, t := range terminals {
		w, h := float64(t.width)*charWidth+2*margin, float64(titleBar+t.height*lineHeight+margin)
		width = max(width, w)
		fmt.Fprintf(&frames, `<rect x="0" y="%.0f" width="%.0f" height="%.0f" rx="8" fill="#16181d"/><text x="%d" y="%.0f" class="t">%s</text>`+"\n",
			y, w, h, margin, y+18, html.EscapeString(t.title))
		spans = append(spans, t.spans(length, y+titleBar)...)
		y += h + 10
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" role=\"img\">\n", width, y-10, width)
	b.WriteString("<title>Two terminals: a client's answer goes on while kill -9 ends the engine that makes it</title>\n<style>\n")
	b.WriteString("text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dae0;white-space:pre}.t{fill:#8b93a1;font-size:12px}.d{fill:#8b93a1}.b{font-weight:bold}\n")
	times := map[[2]time.Duration]int{}
	for _, s := range spans {
		key := [2]time.Duration{s.from, s.till}
		if _, ok := times[key]; !ok && (s.from > 0 || s.till < length) {
			times[key] = len(times)
		}
	}
	keys := make([][2]time.Duration, len(times))
	for key, i := range times {
		keys[i] = key
	}
	fmt.Fprintf(&b, ".a{opacity:0;animation:%.2fs step-end infinite}.e{opacity:1}\n", length.Seconds())
	for i, key := range keys {
		percent := func(d time.Duration) string {
			return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", 100*d.Seconds()/length.Seconds()), "0"), ".") + "%"
		}
		fmt.Fprintf(&b, "@keyframes k%d{0%%{opacity:0}%s{opacity:1}", i, percent(key[0]))
		if key[1] < length {
			fmt.Fprintf(&b, "%s{opacity:0}", percent(key[1]))
		}
		b.WriteString("}\n")
	}
	b.WriteString("@media (prefers-reduced-motion:reduce){.a{animation:none!important}}\n</style>\n")
	b.Write(frames.Bytes())
	for _, s := range spans {
		class := ""
		if i, ok := times[[2]time.Duration{s.from, s.till}]; ok {
			class = fmt.Sprintf(` class="a" style="animation-name:k%d"`, i)
			if s.till == length {
				class = fmt.Sprintf(` class="a e" style="animation-name:k%d"`, i)
			}
		}
		fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"%.0f\"%s>%s</text>\n", s.x, s.y, class, s.text)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// spans are the lines of the terminal, which begins at y.
func (t *terminal) spans(length time.Duration, y float64) []span {
	t.mu.Lock()
	output := slices.Clone(t.output)
	t.mu.Unlock()
	screen := vt.NewEmulator(t.width, t.height)
	lines := make([]span, t.height)
	for i := range lines {
		lines[i] = span{x: margin, y: y + float64((i+1)*lineHeight) - 5}
	}
	var done []span
	for at := time.Duration(0); at < length; at += frameEvery {
		n := 0
		for n < len(output) && output[n].at <= at {
			_, _ = screen.Write(output[n].data)
			n++
		}
		output = output[n:]
		for i := range lines {
			if text := line(screen, i); text != lines[i].text {
				lines[i].till = at
				done = append(done, lines[i])
				lines[i].text, lines[i].from = text, at
			}
		}
	}
	for _, l := range lines {
		l.till = length
		done = append(done, l)
	}
	return slices.DeleteFunc(done, func(s span) bool { return s.text == "" || s.from == s.till })
}

// line is a line of the screen as tspans, without the blanks at its end.
func line(screen *vt.Emulator, y int) string {
	var b strings.Builder
	var run strings.Builder
	style, blanks := "", 0
	flush := func() {
		if run.Len() == 0 {
			return
		}
		text := html.EscapeString(run.String())
		if style != "" {
			text = fmt.Sprintf("<tspan%s>%s</tspan>", style, text)
		}
		b.WriteString(text)
		run.Reset()
	}
	for x := 0; x < screen.Width(); x++ {
		cell := screen.CellAt(x, y)
		if cell == nil || strings.TrimSpace(cell.Content) == "" {
			blanks++
			continue
		}
		run.WriteString(strings.Repeat(" ", blanks))
		blanks = 0
		if s := styleOf(cell); s != style {
			flush()
			style = s
		}
		run.WriteString(cell.Content)
		x += max(0, cell.Width-1) // a wide one takes the next cell, too
	}
	flush()
	return b.String()
}

func styleOf(cell *uv.Cell) string {
	var style string
	var classes []string
	if cell.Style.Attrs&uv.AttrBold != 0 {
		classes = append(classes, "b")
	}
	if cell.Style.Attrs&uv.AttrFaint != 0 {
		classes = append(classes, "d")
	}
	if len(classes) > 0 {
		style += fmt.Sprintf(` class="%s"`, strings.Join(classes, " "))
	}
	if fg := cell.Style.Fg; fg != nil {
		r, g, b, _ := fg.RGBA()
		style += fmt.Sprintf(` fill="#%02x%02x%02x"`, r>>8, g>>8, b>>8)
	}
	return style
}
