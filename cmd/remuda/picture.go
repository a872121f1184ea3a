package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/internal/bytesize"
)

// style is how a part of a bar is drawn.
type style struct {
	plain, block string
	// colour is the parameter of the control sequence that sets it.
	colour string
	legend string
}

// The styles of the parts of a bar.
var (
	styleHot    = style{"#", "█", "32", "HOT"}
	styleMoving = style{"+", "▓", "33", "moving"}
	styleWarm   = style{"w", "▒", "36", "WARM"}
	styleFree   = style{".", "·", "2", "free"}
	styleOut    = style{"x", "×", "31", "out of use"}
	styleOver   = style{"-", "-", "2", "over the WARM budget"}
)

// part is a part of a bar.
type part struct {
	style style
	bytes int64
}

// bar draws parts of a whole in proportion, as "[####..]". A part above 0 has at least one cell. A
// part below 0 is not drawn.
func (c terminal) bar(cells int, parts ...part) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, n := range share(cells, parts) {
		if n == 0 {
			continue
		}
		text := parts[i].style.plain
		if c.blocks {
			text = parts[i].style.block
		}
		b.WriteString(c.paint(parts[i].style.colour, strings.Repeat(text, n)))
	}
	b.WriteByte(']')
	return b.String()
}

func (c terminal) paint(colour, text string) string {
	if !c.colour || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// share deals cells out to parts by their size: one to each that is not nothing, then by
// the largest remainder. All cells are dealt out where there is anything.
func share(cells int, parts []part) []int {
	out := make([]int, len(parts))
	var total float64
	for _, p := range parts {
		total += float64(max(p.bytes, 0))
	}
	if total == 0 {
		return out
	}
	exact := func(i int) float64 { return float64(max(parts[i].bytes, 0)) / total * float64(cells) }
	left := cells
	for i := range parts {
		out[i] = int(exact(i))
		if out[i] == 0 && parts[i].bytes > 0 {
			out[i] = 1
		}
		left -= out[i]
	}
	for ; left != 0; left -= cmp.Compare(left, 0) {
		step := cmp.Compare(left, 0)
		// The part that is furthest from what is due to it; of those that would vanish, none.
		best := -1
		for i := range parts {
			if parts[i].bytes <= 0 || step < 0 && out[i] <= 1 {
				continue
			}
			off := func(i int) float64 { return (exact(i) - float64(out[i])) * float64(step) }
			if best < 0 || off(i) > off(best) {
				best = i
			}
		}
		if best < 0 {
			return out // more parts than cells
		}
		out[best] += step
	}
	return out
}

// picture draws a node: each GPU's memory and seats, the host's memory, and the replicas.
func (c terminal) picture(out io.Writer, s api.NodeStatus) {
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	marks, order := markReplicas(s)
	used := []style{}
	draw := func(cells int, parts ...part) string {
		for _, p := range parts {
			if p.bytes > 0 && !slices.Contains(used, p.style) {
				used = append(used, p.style)
			}
		}
		return c.bar(cells, parts...)
	}
	say("\nGPUs")
	for _, g := range s.Node.GPUs {
		c.gpu(say, draw, g, marks)
	}
	n := s.Node
	if n.HostMemory > 0 {
		budget := max(n.WarmBudget-n.WarmMemory, 0)
		say("\nHost memory")
		say("%s", draw(width-2, part{styleWarm, n.WarmMemory}, part{styleFree, min(budget, n.FreeHostMemory)}, part{styleOver, n.FreeHostMemory - budget}))
		say("%s", wrap("  ", fmt.Sprintf("%s held by WARM replicas, of a budget of %s; the node has %s", bytesize.Text(n.WarmMemory), bytesize.Text(n.WarmBudget), bytesize.Text(n.HostMemory))))
	}
	var legend []string
	for _, i := range []style{styleHot, styleMoving, styleWarm, styleFree, styleOut, styleOver} {
		if !slices.Contains(used, i) {
			continue
		}
		text := i.plain
		if c.blocks {
			text = i.block
		}
		legend = append(legend, c.paint(i.colour, text)+" "+i.legend)
	}
	if len(legend) > 0 {
		say("\n%s", strings.Join(legend, "   "))
	}
	if len(order) == 0 {
		return
	}
	say("\nReplicas")
	at := now()
	for _, r := range order {
		mark := marks[r.Name]
		lines := wrap(strings.Repeat(" ", len(mark)+2), r.Name)
		say("%s%s", mark, lines[len(mark):])
		text := fmt.Sprintf("%s for %s", statusText(r), age(r.Since, at))
		if r.Load != nil {
			text += fmt.Sprintf(", %d in flight", r.Load.InFlight)
		}
		if note := replicaNote(r); note != "" {
			text += "; " + oneLine.Replace(note)
		}
		say("%s", wrap(strings.Repeat(" ", len(mark)+2), text))
	}
}

func (c terminal) gpu(say func(string, ...any), draw func(int, ...part) string, g api.GPU, marks map[string]string) {
	title := strings.TrimSpace(g.UUID + " " + g.Model)
	if g.Clique != "" {
		title += ", clique " + g.Clique
	}
	state := gpuState(g)
	if room := width - len([]rune(title)) - 2; len(state) <= room {
		say("%s", title+"  "+c.paint(stateColour(g), state))
	} else {
		say("%s", wrap("", title))
		say("%s", wrap("  ", state))
	}
	if g.CordonReason != "" {
		say("%s", wrap("  ", "cordoned: "+g.CordonReason))
	}
	free := styleFree
	if g.Cordoned || !g.Healthy {
		free = styleOut
	}
	say("%s", draw(width-2, part{styleHot, g.HotMemory}, part{styleMoving, g.MovingMemory}, part{styleWarm, g.WarmMemory}, part{free, g.FreeMemory}))
	var texts []string
	for _, p := range []part{{styleHot, g.HotMemory}, {styleMoving, g.MovingMemory}, {styleWarm, g.WarmMemory}} {
		if p.bytes > 0 {
			texts = append(texts, bytesize.Text(p.bytes)+" "+p.style.legend)
		}
	}
	texts = append(texts, fmt.Sprintf("%s free of %s", bytesize.Text(g.FreeMemory), bytesize.Text(g.Memory)))
	say("%s", wrap("  ", strings.Join(texts, ", ")))
	seats := []string{"seats"}
	for _, seat := range g.Seats {
		_, number, _ := strings.Cut(seat.ID, "#")
		held := "free"
		if seat.Replica != "" {
			held = cmp.Or(marks[seat.Replica], seat.Replica)
		}
		seats = append(seats, "["+number+":\x00"+held+"]")
	}
	// A line is not broken between the number of a seat and its holder.
	say("%s", strings.ReplaceAll(wrap("  ", strings.Join(seats, " ")), "\x00", " "))
}

func stateColour(g api.GPU) string {
	if g.Cordoned || !g.Healthy {
		return styleOut.colour
	}
	return styleHot.colour
}

// markReplicas gives each replica of a node a letter, in the order of the seats; what holds
// none comes last.
func markReplicas(s api.NodeStatus) (map[string]string, []api.Replica) {
	byName := map[string]api.Replica{}
	for _, r := range s.Replicas {
		byName[r.Name] = r
	}
	marks := map[string]string{}
	var order []api.Replica
	add := func(name string) {
		if r, ok := byName[name]; ok && marks[name] == "" {
			marks[name] = letters(len(order))
			order = append(order, r)
		}
	}
	for _, g := range s.Node.GPUs {
		for _, seat := range g.Seats {
			add(seat.Replica)
		}
	}
	for _, r := range s.Replicas {
		add(r.Name)
	}
	return marks, order
}

// letters counts a, b … z, aa, ab …
func letters(n int) string {
	text := ""
	for n++; n > 0; n = (n - 1) / 26 {
		text = string(rune('a'+(n-1)%26)) + text
	}
	return text
}
