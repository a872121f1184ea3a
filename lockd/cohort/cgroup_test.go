package cohort

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newCgroup makes a cgroup, removed with the test, and returns the file that takes
// process IDs.
func newCgroup(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a cgroup needs root")
	}
	// Version 2 alone, version 2 beside version 1, version 1.
	for _, under := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/freezer"} {
		if _, err := os.Stat(filepath.Join(under, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(under, fmt.Sprintf("remuda-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
		require.NoError(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() {
			require.Eventually(t, func() bool { return os.Remove(dir) == nil }, 10*time.Second, time.Millisecond)
		})
		return filepath.Join(dir, "cgroup.procs")
	}
	t.Fatal("no cgroup hierarchy is mounted under /sys/fs/cgroup")
	return ""
}

// hidden starts a process that clears its environment and loses its parent at
// once, and prints its ID: neither mark nor parent tells whose it is.
const hidden = `( env -i PATH=$PATH setsid ` + sleeper + ` & )`

// orphaned waits until pid has another parent than the shell that started it.
func orphaned(t *testing.T, pid, parent int) {
	t.Helper()
	require.Eventually(t, func() bool {
		s, err := readStat(pid)
		return err == nil && s.parent != parent && cgroupOf(pid) != ""
	}, 10*time.Second, time.Millisecond)
}

func TestWhoIsInTheRootsOwnCgroupIsAMember(t *testing.T) {
	procs := newCgroup(t)
	join := "echo $$ > " + procs + "\n"
	mine := grow(t, []string{EnvVar + "=mine"}, 1, join+`sh -c 'echo $$; exec sleep 60 >&- 2>&-' & read go; `+hidden)
	tracker := NewTracker("mine", mine.root)
	require.ElementsMatch(t, mine.pids, alive(t, tracker))
	require.NotEmpty(t, tracker.own)

	// All of this comes after the last scan in the root's life.
	mine.say("go")
	orphan := mine.next(t)
	orphaned(t, orphan, mine.root.PID)
	guard := grow(t, []string{EnvVar + "=another"}, 0, join)
	require.NoError(t, mine.cmd.Process.Kill())
	_ = mine.cmd.Wait()
	ended := Now()
	tracker.RootEnded(ended)
	require.Eventually(t, func() bool { return Now() > ended }, 10*time.Second, time.Millisecond)
	next := grow(t, nil, 1, join+sleeper+" &")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, tracker.Kill(ctx))
	for _, pid := range []int{mine.pids[0], orphan} {
		_, err := Lookup(pid)
		require.ErrorIs(t, err, ErrGone, "process %d", pid)
	}
	for _, pid := range []int{guard.root.PID, next.root.PID, next.pids[0]} {
		_, err := Lookup(pid)
		require.NoError(t, err, "another cohort and the next life are not touched")
	}
}

func TestAMemberOfTheOwnCgroupIsKnownWhileTheRootLives(t *testing.T) {
	procs := newCgroup(t)
	mine := grow(t, []string{EnvVar + "=mine"}, 1, "echo $$ > "+procs+"\n"+`echo $$; read go; `+hidden)
	tracker := NewTracker("mine", mine.root)
	require.Empty(t, alive(t, tracker))
	mine.say("go")
	orphan := mine.next(t)
	orphaned(t, orphan, mine.root.PID)
	require.Equal(t, []int{orphan}, alive(t, tracker))
}

func TestASharedCgroupTellsNothing(t *testing.T) {
	procs := newCgroup(t)
	join := "echo $$ > " + procs + "\n"
	other := grow(t, nil, 1, join+sleeper+" &")
	mine := grow(t, []string{EnvVar + "=mine"}, 1, join+sleeper+" &")
	tracker := NewTracker("mine", mine.root)
	require.Equal(t, mine.pids, alive(t, tracker))
	require.Empty(t, tracker.own)

	launcher := grow(t, nil, 1, "echo $$ > "+newCgroup(t)+"\n"+`sh -c 'echo $$; read forever' <&0`)
	root, err := Lookup(launcher.pids[0])
	require.NoError(t, err)
	tracker = NewTracker("none", root)
	_ = alive(t, tracker)
	require.Empty(t, tracker.own, "its parent is there as well")
	_, err = Lookup(other.pids[0])
	require.NoError(t, err)
}

// TestSettledProcessesAreNotLookedAtAgain: what makes a takeover quick, and when
// it must not be believed.
func TestSettledProcessesAreNotLookedAtAgain(t *testing.T) {
	other := grow(t, nil, 1, sleeper+" &")
	mine := grow(t, []string{EnvVar + "=mine"}, 1, sleeper+" &")
	tracker := NewTracker("mine", stranger)
	require.ElementsMatch(t, append(mine.pids, mine.root.PID), alive(t, tracker))
	require.True(t, tracker.settledStill())
	require.True(t, tracker.settled[other.pids[0]])
	require.False(t, tracker.settled[mine.pids[0]])

	looks, err := tracker.lookAtAll(func(Process) {})
	require.NoError(t, err)
	for _, l := range looks {
		require.NotEqual(t, other.pids[0], l.PID)
	}
	late := grow(t, []string{EnvVar + "=mine"}, 1, sleeper+" &")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, tracker.Kill(ctx))
	for _, pid := range append(late.pids, mine.pids...) {
		_, err := Lookup(pid)
		require.ErrorIs(t, err, ErrGone, "also who came after the whole scan")
	}
	_, err = Lookup(other.pids[0])
	require.NoError(t, err)

	tracker.forks -= maxPID() // as if so many had been started since
	require.False(t, tracker.settledStill(), "an ID may have a new owner")
	_, _, _, err = tracker.scan(func(Process) {})
	require.NoError(t, err)
	require.True(t, tracker.settledStill(), "it was a whole scan")
}

func TestForksAreCounted(t *testing.T) {
	before := forksSinceBoot()
	require.NotZero(t, before)
	grow(t, nil, 0, "")
	require.Greater(t, forksSinceBoot(), before)
	raw, err := os.ReadFile("/proc/sys/kernel/pid_max")
	require.NoError(t, err)
	require.Equal(t, string(raw), strconv.FormatUint(maxPID(), 10)+"\n")
}

func TestNowIsTheClockOfStartTimes(t *testing.T) {
	before := Now()
	p := grow(t, nil, 0, "").root
	require.GreaterOrEqual(t, p.Start, before)
	require.LessOrEqual(t, p.Start, Now())
	require.NoError(t, unix.Kill(p.PID, 0))
}
