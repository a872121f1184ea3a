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

// ink is what a part of a bar is drawn with.
type ink struct {
	plain, block string
	// colour is the parameter of the control sequence that sets it.
	colour string
	legend string
}

// The inks of the pictures.
var (
	inkHot    = ink{"#", "█", "32", "HOT"}
	inkMoving = ink{"+", "▓", "33", "moving"}
	inkWarm   = ink{"w", "▒", "36", "WARM"}
	inkFree   = ink{".", "·", "2", "free"}
	inkOut    = ink{"x", "×", "31", "out of use"}
	inkOver   = ink{"-", "-", "2", "over the WARM budget"}
)

// part is a part of a bar.
type part struct {
	ink   ink
	bytes int64
}

// bar draws parts of a whole in proportion, as "[####..]". A part that is not nothing has
// a cell at least. What is below 0 is not drawn.
func (c canvas) bar(cells int, parts ...part) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, n := range share(cells, parts) {
		if n == 0 {
			continue
		}
		text := parts[i].ink.plain
		if c.blocks {
			text = parts[i].ink.block
		}
		b.WriteString(c.paint(parts[i].ink.colour, strings.Repeat(text, n)))
	}
	b.WriteByte(']')
	return b.String()
}

func (c canvas) paint(colour, text string) string {
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

// picture draws a node: each GPU's memory and seats, the host's memory, and what is there.
func (c canvas) picture(out io.Writer, s api.NodeStatus) {
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	marks, order := markReplicas(s)
	used := []ink{}
	draw := func(cells int, parts ...part) string {
		for _, p := range parts {
			if p.bytes > 0 && !slices.Contains(used, p.ink) {
				used = append(used, p.ink)
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
		say("%s", draw(width-2, part{inkWarm, n.WarmMemory}, part{inkFree, min(budget, n.FreeHostMemory)}, part{inkOver, n.FreeHostMemory - budget}))
		say("%s", wrap("  ", fmt.Sprintf("%s held by WARM replicas, of a budget of %s; the node has %s", bytesize.Text(n.WarmMemory), bytesize.Text(n.WarmBudget), bytesize.Text(n.HostMemory))))
	}
	var legend []string
	for _, i := range []ink{inkHot, inkMoving, inkWarm, inkFree, inkOut, inkOver} {
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

func (c canvas) gpu(say func(string, ...any), draw func(int, ...part) string, g api.GPU, marks map[string]string) {
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
	free := inkFree
	if g.Cordoned || !g.Healthy {
		free = inkOut
	}
	say("%s", draw(width-2, part{inkHot, g.HotMemory}, part{inkMoving, g.MovingMemory}, part{inkWarm, g.WarmMemory}, part{free, g.FreeMemory}))
	var texts []string
	for _, p := range []part{{inkHot, g.HotMemory}, {inkMoving, g.MovingMemory}, {inkWarm, g.WarmMemory}} {
		if p.bytes > 0 {
			texts = append(texts, bytesize.Text(p.bytes)+" "+p.ink.legend)
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
	// A seat is not broken between its number and who has it.
	say("%s", strings.ReplaceAll(wrap("  ", strings.Join(seats, " ")), "\x00", " "))
}

func stateColour(g api.GPU) string {
	if g.Cordoned || !g.Healthy {
		return inkOut.colour
	}
	return inkHot.colour
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
