//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
	"remuda/internal/testkit/certs"
)

// gatewayProcess is one of two gateways side by side, and remembers when it was away, so
// that clients can tell what to blame it for.
type gatewayProcess struct {
	t    testing.TB
	name string
	url  string
	// client trusts its certificate.
	client *http.Client
	// operators is the URL of its port for operators.
	operators string
	config    string // its file
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
		resp, err := g.client.Get(g.url + "/ready")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/ready says %s", resp.Status)
		}
		body, err := fetch(g.operators + "/metrics")
		if err == nil && !strings.Contains(body, "remuda_gateway_controller_up 1") {
			err = errors.New("remuda_gateway_controller_up is not 1")
		}
		return err
	})
}

// twoGateways returns the cluster's gateways, which remuda dev starts again when they end.
func (f *fleet) twoGateways() [2]*gatewayProcess {
	f.t.Helper()
	var both [2]*gatewayProcess
	for i, name := range []string{"gateway", "gateway-2"} {
		g := &gatewayProcess{t: f.t, name: name, url: f.info.Gateways[i], client: client, operators: f.info.GatewayOperators[i], kills: map[int]bool{}}
		g.config = filepath.Join(f.info.DataDir, "config", name+".hcl")
		g.end = func(sig syscall.Signal) {
			g.t.Helper()
			require.NoError(g.t, f.cluster.End(name, sig))
			require.NoError(g.t, f.cluster.Start(name))
		}
		g.ready()
		both[i] = g
	}
	return both
}

// configure merges settings into the gateway's config file and restarts the gateway.
func (g *gatewayProcess) configure(settings string) {
	g.t.Helper()
	require.NoError(g.t, devcluster.Overlay(g.config, settings))
	g.restart(syscall.SIGKILL)
}

// secure gives the gateways one certificate, after which their clients speak TLS.
func secure(t *testing.T, dir string, gateways ...*gatewayProcess) *tls.Config {
	t.Helper()
	cert, key := certs.New(t, 1)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(cert))
	trusting := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	certPath, keyPath := filepath.Join(dir, "gateway-cert.pem"), filepath.Join(dir, "gateway-key.pem")
	require.NoError(t, os.WriteFile(certPath, cert, 0o600))
	require.NoError(t, os.WriteFile(keyPath, key, 0o600))
	for _, g := range gateways {
		g.url = strings.Replace(g.url, "http://", "https://", 1)
		g.client = &http.Client{Transport: &http.Transport{TLSClientConfig: trusting.Clone(), MaxIdleConnsPerHost: 512}}
		g.configure(fmt.Sprintf("tls {\n  cert = %q\n  key  = %q\n}\n", certPath, keyPath))
	}
	return trusting
}
