package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"remuda/controller/api"
	"remuda/internal/bytesize"
)

func (p *program) topVerb() verb {
	return p.apiVerb(apiCommand{
		synopsis: "Show models, GPUs and decisions live in the terminal",
		about: `Shows what "model list", "queue list", "node list" and "decision list" show, live: what changes is
shown at once, numbers of gateways each second. Keys: m models, r their tokens, time to the first token
of streams and errors in the last minute, h what needs a hand, n nodes, d decisions, up and down to scroll, s to
sort models by waiting requests or by name, q to quit. What it shows is at most a few seconds old; if the
controller cannot be reached, it says how old it is.`,
		raw: true,
		run: func(ctx context.Context, c *apiClient, _ []string) error {
			out, ok := p.stdout.(*os.File)
			if !ok || !c.terminal.controls {
				return errors.New("standard output is not a terminal that can be drawn on: use \"remuda model list -watch\"")
			}
			return c.top(ctx, tea.NewProgram(topScreen{now: now}, tea.WithContext(ctx), tea.WithInput(p.stdin), tea.WithOutput(out)))
		},
	})
}

// overview is what top shows of the controller.
type overview struct {
	models []api.ModelSummary
	queues map[string]api.Queue
	// hand is what needs a hand, and rates have the last hour of the models with problems and the first others.
	hand      api.Overview
	rates     map[string]api.OverviewModel
	nodes     []api.Node
	decisions []api.Decision
	at        time.Time
}

// topDecisions is how many decisions top keeps.
const topDecisions = 200

// topRates is of how many models top has the last hour, the controller's limit.
const topRates = 1000

// overview reads everything. The query applies to the models.
func (c *apiClient) overview(ctx context.Context, q api.QueryOptions) (overview, api.QueryMeta, error) {
	o := overview{queues: map[string]api.Queue{}, rates: map[string]api.OverviewModel{}}
	var meta api.QueryMeta
	var err error
	if o.models, meta, err = c.Models(ctx, q); err != nil {
		return o, meta, err
	}
	queues, err := c.Queues(ctx)
	if err != nil {
		return o, meta, err
	}
	for _, q := range queues {
		o.queues[q.Model] = q
	}
	if o.hand, err = c.Overview(ctx, api.OverviewQuery{Limit: topRates}); err != nil {
		return o, meta, err
	}
	for _, m := range o.hand.Models {
		o.rates[m.Name] = m
	}
	if o.nodes, _, err = c.Nodes(ctx, api.NodeFilter{}, api.QueryOptions{}); err != nil {
		return o, meta, err
	}
	o.decisions, _, err = c.Decisions(ctx, api.DecisionFilter{Limit: topDecisions}, api.QueryOptions{})
	o.at = now()
	return o, meta, err
}

// topWait is how long top waits for a change before it reads the gateways' numbers again.
const topWait = time.Second

// top runs the screen until its user quits or the context ends.
func (c *apiClient) top(ctx context.Context, screen *tea.Program) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var refused error
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		query := func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
			o, meta, err := c.overview(ctx, q)
			switch {
			case err == nil:
				screen.Send(o)
			case !passing(err) && ctx.Err() == nil:
				refused = err
				screen.Quit()
				end()
			}
			return meta, err
		}
		_ = api.Watch(ctx, api.QueryOptions{Wait: topWait}, query, func(err error) { screen.Send(outage{err}) })
	}()
	_, err := screen.Run()
	interrupted := ctx.Err() != nil
	end()
	<-reading
	if refused != nil {
		return refused
	}
	if err != nil && !interrupted {
		return fmt.Errorf("draw on the terminal: %w", err)
	}
	return nil
}

// outage is the message that the controller cannot be reached.
type outage struct{ err error }

// tick is the message that time has passed.
type tick struct{}

func ticking() tea.Cmd { return tea.Tick(time.Second, func(time.Time) tea.Msg { return tick{} }) }

// topScreen is the state of the terminal. Update returns a new one.
type topScreen struct {
	overview
	now           func() time.Time
	outage        error
	width, height int
	page          byte // m, r, h, n or d
	scroll        int
	byName        bool
}

var _ tea.Model = topScreen{}

// Init starts the clock.
func (s topScreen) Init() tea.Cmd { return ticking() }

// Update changes the screen by a key, a new overview or a second.
func (s topScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case overview:
		s.overview, s.outage = msg, nil
	case outage:
		s.outage = msg.err
	case tick:
		return s, ticking()
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch key := msg.String(); key {
		case "q", "ctrl+c", "esc":
			return s, tea.Quit
		case "m", "r", "h", "n", "d":
			s.page, s.scroll = key[0], 0
		case "s":
			s.byName = !s.byName
		case "down", "j":
			s.scroll++
		case "up", "k":
			s.scroll--
		case "pgdown", "space":
			s.scroll += s.room()
		case "pgup":
			s.scroll -= s.room()
		}
		s.scroll = max(0, min(s.scroll, len(s.lines())-1-s.room()))
	}
	return s, nil
}

// topFrame is how many lines are around the list: two of the cluster, an empty one, an empty one, the keys.
const topFrame = 5

// topKeys is the last line.
const topKeys = "[m]odels  [r]ates  [h]and  [n]odes  [d]ecisions  [s]ort  up/down  [q]uit"

// room is how many lines of the list fit below its heading.
func (s topScreen) room() int { return max(1, s.height-topFrame-1) }

// View draws the screen.
func (s topScreen) View() tea.View {
	v := tea.NewView(s.text())
	v.AltScreen = true
	v.WindowTitle = "remuda top"
	return v
}

func (s topScreen) text() string {
	if s.width == 0 {
		return ""
	}
	if s.at.IsZero() {
		if s.outage != nil {
			return wrapTo(s.width, "", fmt.Sprintf("cannot reach the controller, retrying: %v", s.outage))
		}
		return "reading from the controller …"
	}
	lines := s.lines()
	first := min(1+s.scroll, len(lines))
	shown := append(append(s.cluster(), "", lines[0]), lines[first:min(len(lines), first+s.room())]...)
	for len(shown) < s.height-2 {
		shown = append(shown, "")
	}
	shown = append(shown, "", topKeys)
	for i, line := range shown {
		if runes := []rune(line); len(runes) > s.width {
			shown[i] = string(runes[:s.width-1]) + "…"
		}
	}
	return strings.Join(shown, "\n")
}

// cluster is the first two lines: the sums, and how old they are if they are not new.
func (s topScreen) cluster() []string {
	gpus, usable, free, memory, serving, waiting, inFlight, rate := 0, 0, int64(0), int64(0), 0, 0, 0, 0.0
	for _, n := range s.nodes {
		for _, g := range n.GPUs {
			gpus++
			if n.Unusable == "" && g.Healthy && !g.Cordoned {
				usable++
			}
			free, memory = free+g.FreeMemory, memory+g.Memory
		}
	}
	for _, m := range s.models {
		q := s.queues[m.Name]
		serving, waiting, inFlight, rate = serving+m.Counts.Hot, waiting+q.Waiting, inFlight+q.InFlight, rate+q.CompletedPerSecond
	}
	requests := fmt.Sprintf("%s, %d serving   requests: %d in flight, %d waiting, %s", plural(len(s.models), "model"), serving, inFlight, waiting, perSecond(rate))
	if s.outage != nil {
		requests = fmt.Sprintf("AS OF %s AGO: cannot reach the controller   %s", age(s.at, s.now()), requests)
	}
	hand := "nothing needs a hand"
	if n := s.hand.ProblemsTotal; n > 0 {
		hand = strings.ToUpper(plural(n, "problem")) + ": press h"
	}
	return []string{requests, fmt.Sprintf("GPUs: %d of %d usable, %s of %s free   %s", usable, gpus, bytesize.Text(free), bytesize.Text(memory), hand)}
}

// lines are the list of the page; the first is its heading.
func (s topScreen) lines() []string {
	var b strings.Builder
	c := &apiClient{out: &b, terminal: terminal{width: s.width}}
	var t *table
	switch s.page {
	case 'n':
		t = s.nodeTable(c)
	case 'd':
		t = s.decisionTable(c)
	case 'r':
		t = s.rateTable(c)
	case 'h':
		t = s.handTable(c)
	default:
		t = s.modelTable(c)
	}
	_ = t.flush() // A strings.Builder does not fail.
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// sorted are the models in the order of the screen.
func (s topScreen) sorted() []api.ModelSummary {
	models := slices.Clone(s.models)
	slices.SortFunc(models, func(x, y api.ModelSummary) int {
		if qx, qy := s.queues[x.Name], s.queues[y.Name]; !s.byName && (qx.Waiting != qy.Waiting || qx.InFlight != qy.InFlight) {
			return cmp.Or(qy.Waiting-qx.Waiting, qy.InFlight-qx.InFlight)
		}
		return cmp.Compare(x.Name, y.Name)
	})
	return models
}

func (s topScreen) modelTable(c *apiClient) *table {
	t := c.table("MODEL", "STATUS", "SERVING", "WARM", "IN FLIGHT", "WAITING", "OLDEST", "SERVED", "NOTE")
	for _, m := range s.sorted() {
		q := s.queues[m.Name]
		t.row(m.Name, summaryStatus(m), fmt.Sprintf("%d of %d", m.Counts.Hot, m.Target), m.Counts.Warm, q.InFlight, q.Waiting, age(q.OldestAt, s.now()), perSecond(q.CompletedPerSecond), m.Unplaceable)
	}
	return t
}

// rateTable has the last minute of each model. A time to the first token is the mean.
func (s topScreen) rateTable(c *apiClient) *table {
	latest := func(series []int64) int64 {
		if len(series) == 0 {
			return 0
		}
		return series[len(series)-1]
	}
	rate := func(series []int64) string {
		if len(series) == 0 { // 0 in the whole hour, or not known
			return ""
		}
		return perSecond(float64(latest(series)) / time.Minute.Seconds())
	}
	t := c.table("MODEL", "STATUS", "SERVED", "TOKENS", "FIRST TOKEN", "ERRORS")
	for _, m := range s.sorted() {
		of, first := s.rates[m.Name], ""
		if ms := latest(of.FirstTokenMillis); ms > 0 {
			first = (time.Duration(ms) * time.Millisecond).String()
		}
		t.row(m.Name, summaryStatus(m), perSecond(s.queues[m.Name].CompletedPerSecond), rate(of.Tokens), first, rate(of.Errors))
	}
	return t
}

// handTable has what needs a hand.
func (s topScreen) handTable(c *apiClient) *table {
	t := c.table("KIND", "ABOUT", "PROBLEM")
	for _, p := range s.hand.Problems {
		t.row(p.Kind, cmp.Or(p.GPU, p.NodeName, p.Replica, p.Model), p.Text)
	}
	return t
}

func (s topScreen) nodeTable(c *apiClient) *table {
	t := c.table("NODE", "GPU", "MEMORY", "HOT", "WARM", "FREE", "SEATS", "STATUS")
	for _, n := range s.nodes {
		for _, g := range n.GPUs {
			used := 0
			for _, seat := range g.Seats {
				if seat.Replica != "" {
					used++
				}
			}
			state := gpuState(g)
			if at := nodeState(n); at != "ready" {
				state = at
			}
			t.row(n.Name, g.UUID[:min(len(g.UUID), len("GPU-12345678"))], bar(g), bytesize.Text(g.HotMemory), bytesize.Text(g.WarmMemory), bytesize.Text(g.FreeMemory), fmt.Sprintf("%d of %d", used, len(g.Seats)), state)
		}
	}
	return t
}

func (s topScreen) decisionTable(c *apiClient) *table {
	var names []string
	for _, d := range s.decisions {
		names = append(names, aboutText(d))
	}
	name := c.shortNames(names)
	t := c.table("AGE", "KIND", "ABOUT", "REASON")
	for _, d := range s.decisions {
		t.row(age(d.Time, s.now()), d.Kind, name(aboutText(d)), d.Reason)
	}
	return t
}

// bar draws a GPU's memory in ten characters: # for HOT, ~ for what moves, w for WARM, . for free.
func bar(g api.GPU) string {
	const cells = 10
	part := func(bytes int64) int {
		if g.Memory <= 0 || bytes <= 0 {
			return 0
		}
		return max(1, int(bytes*cells/g.Memory))
	}
	text := strings.Repeat("#", part(g.HotMemory)) + strings.Repeat("~", part(g.MovingMemory)) + strings.Repeat("w", part(g.WarmMemory))
	text = text[:min(len(text), cells)]
	return "[" + text + strings.Repeat(".", cells-len(text)) + "]"
}
