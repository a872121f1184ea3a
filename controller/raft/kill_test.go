package raft_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/parallel"
)

// childDir and childAddress are set in the environment of a child that writes until it
// is killed.
const childDir, childAddress = "REMUDA_TEST_RAFT_DIR", "REMUDA_TEST_RAFT_ADDRESS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		writeForEver(dir)
	}
	if text := os.Getenv(childServer); text != "" {
		serveForEver(text)
	}
	parallel.Raise("8")
	os.Exit(m.Run())
}

func childConfig(dir string) (raft.Config, error) {
	cfg := raft.DefaultConfig()
	store, err := state.New()
	cfg.DataDir, cfg.Bind, cfg.Store, cfg.BootstrapExpect = dir, os.Getenv(childAddress), store, 1
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	cfg.SnapshotInterval, cfg.SnapshotThreshold, cfg.TrailingLogs = 10*time.Millisecond, 20, 5
	return cfg, err
}

// writeForEver prints each number after it was committed.
func writeForEver(dir string) {
	cfg, err := childConfig(dir)
	if err == nil {
		var n *raft.Node
		if n, err = raft.Open(cfg); err == nil {
			for n.Verify(context.Background()) != nil {
				time.Sleep(time.Millisecond)
			}
			from, _ := strconv.Atoi(n.Store().View().Switch(nil, "n"))
			fmt.Println("start", from)
			for i := from + 1; ; i++ {
				if _, err = n.Apply(context.Background(), set("n", strconv.Itoa(i))); err != nil {
					break
				}
				fmt.Println("done", i)
			}
		}
	}
	fmt.Println("error", err)
	os.Exit(1)
}

// TestKilledServerKeepsWhatItAcknowledged kills a server in the middle of writes and
// of snapshots, again and again.
func TestKilledServerKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := loopback.Free(t)
	acknowledged := 0
	for round := range 6 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir, childAddress+"="+address)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for done := 0; done < 40+17*round && lines.Scan(); {
			word, number, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.Atoi(number)
			require.NoError(t, err, lines.Text())
			switch word {
			case "start":
				require.GreaterOrEqual(t, n, acknowledged, "what was acknowledged is lost")
			case "done":
				acknowledged = n
				done++
			}
		}
		require.NoError(t, cmd.Process.Kill())
		rest, err := io.ReadAll(out)
		require.NoError(t, err)
		require.Error(t, cmd.Wait())
		for line := range strings.Lines(string(rest)) {
			var n int
			if _, err := fmt.Sscanf(line, "done %d\n", &n); err == nil {
				acknowledged = n
			}
		}
	}
	require.Greater(t, acknowledged, 200)
}
