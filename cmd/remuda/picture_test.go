package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"remuda/controller/api"
)

const gib = int64(1 << 30)

// drawn is a node with all that there can be on it.
func drawn() api.NodeStatus {
	long := strings.Repeat("a-very-long-name/", 7) + "m:h100:00000000-0000-4000-8000-000000000001"
	return api.NodeStatus{
		Node: api.Node{
			ID: "n1", Name: "gpu-1", Ready: true, HostMemory: 100 * gib, WarmMemory: 20 * gib, FreeHostMemory: 80 * gib, WarmBudget: 90 * gib,
			GPUs: []api.GPU{
				{
					UUID: gpuA, Model: "NVIDIA H100 80GB HBM3", Clique: "c1", Memory: 80 * gib, HotMemory: 40 * gib, MovingMemory: 10 * gib, WarmMemory: gib, FreeMemory: 29 * gib, Healthy: true,
					Seats: []api.Seat{{ID: gpuA + "#0", Replica: long}, {ID: gpuA + "#1", Replica: "m:h100:2"}, {ID: gpuA + "#2"}},
				},
				{
					UUID: gpuB, Model: "NVIDIA H100 80GB HBM3", Memory: 80 * gib, FreeMemory: 80 * gib, Healthy: true, Cordoned: true,
					CordonReason: "the memory of replica m:h100:3 did not come back within 30s: 41.2 GiB are in use, 1 GiB was expected",
					Seats:        []api.Seat{{ID: gpuB + "#0"}, {ID: gpuB + "#1", Replica: "m:h100:2"}},
				},
			},
		},
		Replicas: []api.Replica{
			{Name: "m:h100:2", Tier: "WARM", Status: "warm", Goal: "warm", Current: true, Since: now().Add(-time.Hour)},
			{Name: long, Tier: "HOT", Status: "draining", Goal: "warm", MakesRoomFor: "big", Current: true, Since: now().Add(-time.Minute), Load: &api.Load{InFlight: 3}},
			{Name: "m:h100:9", Tier: "COLD", Status: "cold", Goal: "cold", Current: true, Since: now().Add(-time.Minute)},
		},
	}
}

func TestPictureOfANode(t *testing.T) {
	var b bytes.Buffer
	terminal{}.picture(&b, drawn())
	text := b.String()
	want := `
GPUs
` + gpuA + ` NVIDIA H100 80GB HBM3, clique c1
  healthy
[` + strings.Repeat("#", 39) + strings.Repeat("+", 10) + "w" + strings.Repeat(".", 28) + `]
  40 GiB HOT, 10 GiB moving, 1 GiB WARM, 29 GiB free of 80 GiB
  seats [0: a] [1: b] [2: free]
` + gpuB + ` NVIDIA H100 80GB HBM3  cordoned
  cordoned: the memory of replica m:h100:3 did not come back within 30s: 41.2
  GiB are in use, 1 GiB was expected
[` + strings.Repeat("x", 78) + `]
  80 GiB free of 80 GiB
  seats [0: free] [1: b]

Host memory
[` + strings.Repeat("w", 16) + strings.Repeat(".", 54) + strings.Repeat("-", 8) + `]
  20 GiB held by WARM replicas, of a budget of 90 GiB; the node has 100 GiB

# HOT   + moving   w WARM   . free   x out of use   - over the WARM budget

Replicas
`
	require.Equal(t, want, text[:min(len(want), len(text))])
	require.Contains(t, text, "draining to WARM for 1m0")
	require.Contains(t, text, ", 3 in flight; evicted for big")
	require.Contains(t, text, "b  m:h100:2\n   warm for 1h")
	require.Contains(t, text, "c  m:h100:9\n   cold for ")
	require.NotContains(t, text, "\x1b")
	for _, line := range strings.Split(text, "\n") {
		require.LessOrEqual(t, len([]rune(line)), width, line)
	}
}

func TestPictureInColour(t *testing.T) {
	var b bytes.Buffer
	terminal{colour: true, blocks: true}.picture(&b, drawn())
	require.Contains(t, b.String(), "[\x1b[32m"+strings.Repeat("█", 39)+"\x1b[0m\x1b[33m"+strings.Repeat("▓", 10)+"\x1b[0m")
	require.Contains(t, b.String(), "\x1b[31mcordoned\x1b[0m")
	b.Reset()
	terminal{blocks: true}.picture(&b, drawn())
	require.NotContains(t, b.String(), "\x1b")
}

// TestShare: cells are dealt out in full, nothing that is there vanishes, and no part is
// further than that from what is due to it.
func TestShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cells := rapid.IntRange(8, 100).Draw(t, "cells")
		var parts []part
		var total int64
		for range rapid.IntRange(1, 6).Draw(t, "parts") {
			n := rapid.OneOf(rapid.Int64Range(-10, 10), rapid.Int64Range(0, 1<<40)).Draw(t, "bytes")
			parts = append(parts, part{bytes: n})
			total += max(n, 0)
		}
		sum := 0
		for i, n := range share(cells, parts) {
			sum += n
			require.Equal(t, parts[i].bytes > 0, n > 0)
			if parts[i].bytes > 0 {
				require.InDelta(t, float64(parts[i].bytes)/float64(total)*float64(cells), n, float64(len(parts)))
			}
		}
		if total > 0 {
			require.Equal(t, cells, sum)
		}
	})
}

func TestLetters(t *testing.T) {
	for n, want := range map[int]string{0: "a", 25: "z", 26: "aa", 51: "az", 52: "ba", 701: "zz", 702: "aaa"} {
		require.Equal(t, want, letters(n))
	}
}

func TestWrap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOf(rapid.StringMatching(`[a-zé]{1,120}`)).Draw(t, "words")
		indent := strings.Repeat(" ", rapid.IntRange(0, 10).Draw(t, "indent"))
		text := wrap(indent, strings.Join(words, " "))
		for _, line := range strings.Split(text, "\n") {
			require.LessOrEqual(t, len([]rune(line)), width)
			require.True(t, text == "" || strings.HasPrefix(line, indent))
		}
		require.Equal(t, strings.Join(words, ""), strings.Join(strings.Fields(text), ""))
	})
}

// TestCanvas: colours are for terminals, and for who wants them.
func TestCanvas(t *testing.T) {
	env := func(pairs ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	require.Equal(t, terminal{}, terminalOf(&bytes.Buffer{}, env("TERM", "xterm")))
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	require.Equal(t, terminal{}, terminalOf(file, env("TERM", "xterm")))

	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer master.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer tty.Close()
	for name, tc := range map[string]struct {
		env  func(string) string
		want terminal
	}{
		"colours":         {env("TERM", "xterm"), terminal{colour: true, width: 80, controls: true}},
		"and blocks":      {env("TERM", "xterm", "LANG", "C.UTF-8"), terminal{colour: true, blocks: true, width: 80, controls: true}},
		"LC_ALL wins":     {env("TERM", "xterm", "LANG", "C.UTF-8", "LC_ALL", "C"), terminal{colour: true, width: 80, controls: true}},
		"no colour":       {env("TERM", "xterm", "LANG", "de_DE.utf8", "NO_COLOR", "1"), terminal{blocks: true, width: 80, controls: true}},
		"dumb":            {env("TERM", "dumb", "LANG", "C.UTF-8"), terminal{width: 80}},
		"not said at all": {env(), terminal{width: 80}},
		"its columns":     {env("COLUMNS", "132"), terminal{width: 132}},
	} {
		require.Equal(t, tc.want, terminalOf(tty, tc.env), name)
	}
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}))
	require.Equal(t, terminal{width: 100, height: 30}, terminalOf(tty, env("TERM", "dumb")))
}
