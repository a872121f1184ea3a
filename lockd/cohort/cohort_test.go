package cohort

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const rest = "S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 4242 1000 10"
	for name, tc := range map[string]struct {
		line string
		want stat
		err  string
	}{
		"plain":               {line: "9 (sleep) " + rest, want: stat{Process{9, 4242}, 7, 'S', 3, false}},
		"of the kernel":       {line: "9 (kworker/0:1) " + strings.Replace(rest, "4194560", "69238880", 1), want: stat{Process{9, 4242}, 7, 'S', 3, true}},
		"bad flags":           {line: "9 (sleep) " + strings.Replace(rest, "4194560", "x", 1), err: "flags"},
		"a name with spaces":  {line: "9 (tmux: server) " + rest, want: stat{Process{9, 4242}, 7, 'S', 3, false}},
		"a name like a field": {line: "9 (a) Z 1 (b)) " + rest, want: stat{Process{9, 4242}, 7, 'S', 3, false}},
		"no name":             {line: "9 sleep S 7", err: "no closing bracket"},
		"cut off":             {line: "9 (sleep) S 7 1", err: "3 fields after the name"},
		"bad parent":          {line: "9 (sleep) " + strings.Replace(rest, "S 7", "S x", 1), err: "parent"},
		"bad threads":         {line: "9 (sleep) " + strings.Replace(rest, "0 3 0", "0 x 0", 1), err: "threads"},
		"bad start":           {line: "9 (sleep) " + strings.Replace(rest, "4242", "-1", 1), err: "start time"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(9, []byte(tc.line))
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("9 (a) b) S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 4242 1000 10"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if s, err := parseStat(9, raw); err == nil && s.PID != 9 {
			t.Fatalf("PID %d", s.PID)
		}
	})
}

func TestGone(t *testing.T) {
	require.True(t, stat{state: 'Z', threads: 1}.gone())
	require.True(t, stat{state: 'X', threads: 1}.gone())
	require.False(t, stat{state: 'Z', threads: 2}.gone(), "a dead leader's threads still hold its memory")
	require.False(t, stat{state: 'D', threads: 1}.gone())
}

// tree is a shell with descendants, all ended with the test.
type tree struct {
	cmd  *exec.Cmd
	root Process
	// pids are what the script printed, one per line.
	pids  []int
	stdin io.Writer
	lines *bufio.Scanner
}

// say is a line that the script reads.
func (tr *tree) say(line string) { _, _ = fmt.Fprintln(tr.stdin, line) }

// next is the next process ID that the script prints; it is ended with the test.
func (tr *tree) next(t *testing.T) int {
	t.Helper()
	require.True(t, tr.lines.Scan(), "the script printed too few process IDs")
	pid, err := strconv.Atoi(strings.TrimSpace(tr.lines.Text()))
	require.NoError(t, err)
	tr.pids = append(tr.pids, pid)
	return pid
}

// grow runs a shell script that prints n process IDs and then waits.
func grow(t *testing.T, env []string, n int, script string) *tree {
	t.Helper()
	cmd := exec.Command("sh", "-c", script+"\nread forever")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	tr := &tree{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}
	t.Cleanup(func() {
		_ = stdin.Close()
		for _, pid := range tr.pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range n {
		tr.next(t)
	}
	tr.root, err = Lookup(cmd.Process.Pid)
	require.NoError(t, err)
	return tr
}

func alive(t *testing.T, tracker *Tracker) []int {
	t.Helper()
	found, err := tracker.Scan()
	require.NoError(t, err)
	pids := []int{}
	for _, p := range found {
		pids = append(pids, p.PID)
	}
	return pids
}

// anywhere returns the members among all processes of the machine.
func anywhere(t *testing.T, tracker *Tracker) []int {
	t.Helper()
	found, _, err := tracker.scan(everything, func(Process) {})
	require.NoError(t, err)
	pids := []int{}
	for _, p := range found {
		pids = append(pids, p.PID)
	}
	return pids
}

// sleeper starts a sleep that prints its own ID; its output is closed
// afterwards so that nothing waits for it.
const sleeper = `sh -c 'echo $$; exec sleep 60 >&- 2>&-'`

// stranger is a root that no process has.
var stranger = Process{PID: 1 << 30, Start: 1}

func TestMarkedProcessesAreMembersWhereverTheyWent(t *testing.T) {
	mine := grow(t, []string{EnvVar + "=mine"}, 2, `( setsid `+sleeper+` & ) ; `+sleeper+` &`)
	other := grow(t, []string{EnvVar + "=other"}, 1, sleeper+` &`)
	nearly := grow(t, []string{"X" + EnvVar + "=mine", EnvVar + "=mine2"}, 1, sleeper+` &`)
	got := anywhere(t, NewTracker("mine", stranger))
	require.ElementsMatch(t, append(mine.pids, mine.root.PID), got)
	for _, pid := range append(other.pids, nearly.pids...) {
		require.NotContains(t, got, pid)
	}
}

func TestDescendantsWithoutTheMarkAreMembers(t *testing.T) {
	tr := grow(t, nil, 2, sleeper+` & env -i PATH=$PATH setsid `+sleeper+` &`)
	require.ElementsMatch(t, tr.pids, alive(t, NewTracker("none", tr.root)), "the root itself is none")
	require.ElementsMatch(t, tr.pids, anywhere(t, NewTracker("none", tr.root)))
	reused := tr.root
	reused.Start++
	require.Empty(t, alive(t, NewTracker("none", reused)), "a stranger that got the root's ID has no members")
	require.Empty(t, anywhere(t, NewTracker("none", reused)))
}

func TestAMemberOnceSeenStaysOne(t *testing.T) {
	// The child has no mark; it is known by its parent only while that lives.
	tr := grow(t, nil, 2, `exec 3<&0; sh -c 'echo $$; `+strings.ReplaceAll(sleeper, "'", `'"'"'`)+` & read forever' <&3 &`)
	tracker := NewTracker("none", tr.root)
	require.ElementsMatch(t, tr.pids, alive(t, tracker))
	require.NoError(t, unix.Kill(tr.pids[0], unix.SIGKILL))
	require.Eventually(t, func() bool { return len(alive(t, tracker)) == 1 }, 10*time.Second, time.Millisecond)
	require.Equal(t, tr.pids[1:], alive(t, tracker), "the orphan is still a member")
	require.NotContains(t, alive(t, NewTracker("none", tr.root)), tr.pids[1], "whoever looks only now cannot know it")
}

func TestKillEndsEveryMemberAndNobodyElse(t *testing.T) {
	mine := grow(t, []string{EnvVar + "=kill-me"}, 3, sleeper+` & setsid `+sleeper+` & ( `+sleeper+` & ) `)
	other := grow(t, []string{EnvVar + "=other"}, 1, sleeper+` &`)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tracker := NewTracker("kill-me", stranger)
	require.NoError(t, tracker.Kill(ctx))
	for _, pid := range append(mine.pids, mine.root.PID) {
		_, err := Lookup(pid)
		require.ErrorIs(t, err, ErrGone)
	}
	_, err := Lookup(other.pids[0])
	require.NoError(t, err)
	require.NoError(t, tracker.Kill(ctx), "nobody left is no error")
}

// TestKillEndsWhoeverForksMeanwhile: members that start another process and end,
// again and again, are on no list for long, and in the middle of execve they have
// no environment. All of them have a lock, which the kernel takes back from the
// last of them.
func TestKillEndsWhoeverForksMeanwhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	const walk = `n=0; w() { sleep 0.00$((n % 4)); n=$((n + 1)); if [ $n -lt 1000 ]; then w & fi; exit; }; for i in 1 2 3 4 5 6; do w & done`
	for i := range 15 {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB), "round %d: a member outlived Kill", i)
		id := fmt.Sprintf("walkers-%d-%d", os.Getpid(), i)
		cmd := exec.Command("sh", "-c", walk)
		cmd.Env = append(os.Environ(), EnvVar+"="+id)
		cmd.ExtraFiles = []*os.File{file}
		require.NoError(t, cmd.Run())
		require.NoError(t, file.Close())
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err = NewTracker(id, stranger).Kill(ctx)
		cancel()
		require.NoError(t, err)
	}
}

// TestKillDescendants runs in a process of its own, which becomes a subreaper.
func TestKillDescendants(t *testing.T) {
	const env = "REMUDA_TEST_SUBREAPER"
	if os.Getenv(env) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKillDescendants$", "-test.v")
		cmd.Env = append(os.Environ(), env+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS")
		return
	}
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	for range 20 {
		// Children, orphans without a mark in sessions of their own, and processes that go on
		// starting another one and ending.
		engine := exec.Command("sh", "-c", `w() { sleep 0.00$((n % 3)); n=$((n + 1)); w & exit; }; n=0; w & `+
			`( env -i PATH=$PATH setsid sleep 60 & ) ; sleep 60 & echo started; wait`)
		out, err := engine.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, engine.Start())
		_, err = bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- engine.Wait() }()
		require.NoError(t, Reap(engine.Process.Pid))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		require.NoError(t, KillDescendants(ctx, engine.Process.Pid))
		cancel()
		var exit *exec.ExitError
		require.ErrorAs(t, <-ended, &exit, "the status of the awaited child is left to who waits for it")
		left, err := children(os.Getpid())
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

func TestHandle(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	p, err := Lookup(cmd.Process.Pid)
	require.NoError(t, err)
	reused := p
	reused.Start--
	_, err = Open(reused)
	require.ErrorIs(t, err, ErrGone, "another process has the ID now")

	h, err := Open(p)
	require.NoError(t, err)
	defer h.Close()
	ended, err := h.Wait(0)
	require.NoError(t, err)
	require.False(t, ended)
	require.NoError(t, h.Signal(unix.SIGKILL))
	ended, err = h.Wait(-1)
	require.NoError(t, err)
	require.True(t, ended)
	_, err = Lookup(p.PID)
	require.ErrorIs(t, err, ErrGone, "a zombie holds nothing")
	require.Error(t, cmd.Wait())
	require.NoError(t, h.Signal(unix.SIGTERM), "a process that is gone is no error")
	_, err = Open(p)
	require.ErrorIs(t, err, ErrGone)
}

// TestMarkIsNeverMissed: a process that starts one program after another in place
// has its mark, or is in the middle of that; it is never one without.
func TestMarkIsNeverMissed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "again")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nexec \"$0\"\n"), 0o700))
	cmd := exec.Command(path)
	cmd.Env = []string{EnvVar + "=mine"}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	told := 0
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		id, ok := markOf(cmd.Process.Pid)
		if ok {
			told++
			require.Equal(t, "mine", id)
		}
	}
	require.NotZero(t, told)
}

func TestEmptyEnvironment(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.Eventually(t, func() bool {
		id, told := markOf(cmd.Process.Pid)
		return told && id == "" && cmdlineOf(cmd.Process.Pid) == "sleep\x0060\x00"
	}, 10*time.Second, time.Millisecond)
}

func cmdlineOf(pid int) string {
	raw, _ := read(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(raw)
}
