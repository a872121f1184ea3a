//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gatewayProcess is one of two gateways side by side, and remembers when it was away, so
// that clients can tell what to blame it for.
type gatewayProcess struct {
	t      testing.TB
	name   string
	url    string
	config string // its file
	// end sends a signal to the process, and waits until there is another that was
	// started in its place.
	end func(sig syscall.Signal)

	mu sync.Mutex
	// era is odd while the gateway is away, and grows. kills are the eras in which it
	// went away without a word.
	era   int
	kills map[int]bool
}

// now is the gateway's era.
func (g *gatewayProcess) now() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.era
}

// goneSince tells whether the gateway was away at any time since an era, and whether it
// was killed.
func (g *gatewayProcess) goneSince(era int) (gone, killed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if era%2 == 0 {
		era++
	}
	for ; era <= g.era; era += 2 {
		gone = true
		killed = killed || g.kills[era]
	}
	return gone, killed
}

// restart ends the gateway with a signal and waits until it is ready again.
func (g *gatewayProcess) restart(sig syscall.Signal) {
	g.t.Helper()
	g.mu.Lock()
	g.era++
	g.kills[g.era] = sig == syscall.SIGKILL
	g.mu.Unlock()
	g.end(sig)
	g.ready()
	g.mu.Lock()
	g.era++
	g.mu.Unlock()
}

// ready waits until the gateway serves and follows the controller.
func (g *gatewayProcess) ready() {
	g.t.Helper()
	eventually(g.t, time.Minute, g.name+" to be ready", func() error {
		resp, err := client.Get(g.url + "/ready")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/ready says %s", resp.Status)
		}
		body, err := fetch(g.url + "/metrics")
		if err == nil && !strings.Contains(body, "remuda_gateway_controller_up 1") {
			err = errors.New("remuda_gateway_controller_up is not 1")
		}
		return err
	})
}

// firstGateway is the cluster's own gateway, which remuda dev starts again when it ends.
func (f *fleet) firstGateway() *gatewayProcess {
	g := &gatewayProcess{t: f.t, name: "gateway 1", url: f.info.Gateway, kills: map[int]bool{}}
	g.config = filepath.Join(f.info.DataDir, "config", "gateway.hcl")
	g.end = func(sig syscall.Signal) {
		g.t.Helper()
		old := f.pid("gateway")
		require.NoError(g.t, syscall.Kill(old, sig))
		eventually(g.t, time.Minute, "gateway 1 to be started again", func() error {
			if pid := f.findPID("gateway"); pid == 0 || pid == old {
				return fmt.Errorf("process %d", pid)
			}
			return nil
		})
	}
	return g
}

// twoGateways starts a second gateway beside the cluster's. Both get the blocks of more in
// their config files.
func (f *fleet) twoGateways(more string) [2]*gatewayProcess {
	t := f.t
	t.Helper()
	first := f.firstGateway()
	raw, err := os.ReadFile(first.config)
	require.NoError(t, err)

	host, _, err := net.SplitHostPort(strings.TrimPrefix(first.url, "http://"))
	require.NoError(t, err)
	address := freePortOn(t, host)
	second := &gatewayProcess{t: t, name: "gateway 2", url: "http://" + address, kills: map[int]bool{}}
	second.config = filepath.Join(f.dir, "gateway-2.hcl")
	listen := regexp.MustCompile(`(?m)^listen\s*=.*$`)
	require.Regexp(t, listen, string(raw))
	require.NoError(t, os.WriteFile(second.config, listen.ReplaceAll(raw, fmt.Appendf(nil, "listen = %q", address)), 0o600))
	var cmd *exec.Cmd
	var done chan struct{}
	start := func() {
		t := second.t
		t.Helper()
		log, err := os.OpenFile(filepath.Join(f.info.DataDir, "logs", "gateway-2.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		defer log.Close()
		cmd, done = exec.Command(binary(t, "remuda"), "gateway", "-config", second.config), make(chan struct{})
		cmd.Stdout, cmd.Stderr = log, log
		require.NoError(t, cmd.Start())
		go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(cmd, done)
	}
	second.end = func(sig syscall.Signal) {
		t := second.t
		t.Helper()
		require.NoError(t, cmd.Process.Signal(sig))
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("gateway 2 did not end within a minute of %s", sig)
		}
		start()
	}
	start()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	both := [2]*gatewayProcess{first, second}
	for _, g := range both {
		g.configure("", more)
	}
	return both
}

// configure replaces a part of the gateway's config file, or adds to it, and restarts the
// gateway.
func (g *gatewayProcess) configure(was, is string) {
	g.t.Helper()
	raw, err := os.ReadFile(g.config)
	require.NoError(g.t, err)
	text := string(raw)
	if was != "" {
		require.Contains(g.t, text, was)
		text = strings.Replace(text, was, "", 1)
	}
	require.NoError(g.t, os.WriteFile(g.config, []byte(text+is), 0o600))
	g.restart(syscall.SIGKILL)
}
