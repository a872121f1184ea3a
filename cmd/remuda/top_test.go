package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/controller/api"
)

// pseudoTerminal is a terminal of 80 columns and 24 lines with an emulator that shows its screen.
type pseudoTerminal struct {
	t      *testing.T
	master *os.File
	tty    *os.File
	screen *lockedScreen
}

// lockedScreen is an emulator that is written to and read by several goroutines. Its Read, which has what the
// emulator answers, needs no lock.
type lockedScreen struct {
	*vt.Emulator
	mu sync.Mutex
}

func (s *lockedScreen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Emulator.Write(b)
}

func (s *lockedScreen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Emulator.String()
}

func newPseudoTerminal(t *testing.T) *pseudoTerminal {
	t.Helper()
	master, tty, err := pty.Open()
	require.NoError(t, err)
	require.NoError(t, pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: 80}))
	p := &pseudoTerminal{t: t, master: master, tty: tty, screen: &lockedScreen{Emulator: vt.NewEmulator(80, 24)}}
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(p.screen, master); done <- struct{}{} }()
	go func() { _, _ = io.Copy(master, p.screen); done <- struct{}{} }() // what the emulator answers
	t.Cleanup(func() {
		_ = tty.Close()
		_ = master.Close()
		if answers, ok := p.screen.InputPipe().(io.Closer); ok { // its Close is no match for a Read
			_ = answers.Close()
		}
		<-done
		<-done
	})
	return p
}

// shows waits until the screen shows all of the texts.
func (p *pseudoTerminal) shows(r *running, texts ...string) {
	p.t.Helper()
	r.eventually(fmt.Sprintf("%q on the screen", texts), func() bool {
		for _, text := range texts {
			if !strings.Contains(p.screen.String(), text) {
				return false
			}
		}
		return true
	})
}

// TestTop drives remuda top in a pseudo terminal: it shows models, GPUs and decisions, what changes
// by itself, and how old it is while the controller is away.
func TestTop(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	r := newWorld(t).dev()
	p := newPseudoTerminal(t)
	const model = "llama"
	path := writeModel(t, model, "  max = 3\n  replicas = 1\n"+variant("h100", "20GiB"))
	r.ok("model", "apply", path)
	before, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var errout strings.Builder
	code := make(chan int, 1)
	go func() {
		code <- (&program{ctx: ctx, stdin: p.tty, stdout: p.tty, stderr: &errout}).run([]string{"top", "-address", r.url})
	}()
	p.shows(r, "1 model, 1 serving", "GPUs: 2 of 2 usable", "MODEL", model, "1 of 1", "[q]uit")
	r.ok("scale", model, "2")
	p.shows(r, "1 model, 2 serving", "2 of 2")
	press := func(key string) {
		_, err := p.master.WriteString(key)
		require.NoError(t, err)
	}
	press("n")
	p.shows(r, "gpu-1", gpuA[:12], "[###", "healthy")
	require.NotContains(t, p.screen.String(), "OLDEST")
	press("d")
	p.shows(r, "REASON", "scale")
	press("r")
	p.shows(r, "FIRST TOKEN", model, "0/s")
	press("h")
	p.shows(r, "PROBLEM", "nothing needs a hand")
	press("m")
	p.shows(r, "OLDEST")
	press("q")
	require.Equal(t, 0, <-code, errout.String())
	after, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	require.NoError(t, err)
	require.Equal(t, before, after, "the terminal is as it was")

	got := r.do("top")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `use "remuda model list -watch"`)
}

// TestTopScreen: what the screen shows follows from its state alone.
func TestTopScreen(t *testing.T) {
	at := now()
	var s topScreen
	s.now = func() time.Time { return at.Add(7 * time.Second) }
	s.width, s.height = 80, 12
	require.Contains(t, s.text(), "reading from the controller")
	s.outage = io.ErrUnexpectedEOF
	require.Contains(t, s.text(), "cannot reach the controller, retrying: unexpected EOF")
	var models []api.ModelSummary
	for i := range 20 {
		models = append(models, api.ModelSummary{Name: fmt.Sprintf("m-%02d", i), Target: 1})
	}
	next, _ := s.Update(overview{models: models, queues: map[string]api.Queue{"m-13": {Waiting: 4}}, at: at})
	s = next.(topScreen)
	require.Contains(t, s.text(), "0 in flight, 4 waiting")
	require.NotContains(t, s.text(), "AS OF")
	require.Less(t, strings.Index(s.text(), "m-13"), strings.Index(s.text(), "m-00"), "those with waiting requests come first")
	for _, line := range strings.Split(s.text(), "\n") {
		require.LessOrEqual(t, len([]rune(line)), 80)
	}
	require.Equal(t, 12, strings.Count(s.text(), "\n")+1)
	require.Contains(t, s.text(), "nothing needs a hand")
	s.page = 'r'
	s.rates = map[string]api.OverviewModel{"m-13": {Tokens: []int64{0, 90}, FirstTokenMillis: []int64{0, 250}, Errors: []int64{0, 6}}}
	require.Regexp(t, `(?m)^m-13 .* 1\.5/s +250ms +0\.1/s$`, s.text())
	require.Regexp(t, `(?m)^m-00 .* - +- +-$`, s.text())
	s.page = 'h'
	s.hand = api.Overview{ProblemsTotal: 2, Problems: []api.Problem{{Kind: "gpu", Node: "n", NodeName: "one", GPU: "GPU-1", Text: "unhealthy: XID 79"}, {Kind: "model", Model: "m-13", Text: "no replica serves"}}}
	require.Contains(t, s.text(), "2 PROBLEMS: press h")
	require.Regexp(t, `(?m)^gpu +GPU-1 +unhealthy: XID 79$`, s.text())
	require.Regexp(t, `(?m)^model +m-13 +no replica serves$`, s.text())
	s.page = 'm'
	next, _ = s.Update(outage{io.ErrUnexpectedEOF})
	require.Contains(t, next.(topScreen).text(), "AS OF 7s AGO")
	s.scroll = 15
	require.Contains(t, s.text(), "m-19")
}
