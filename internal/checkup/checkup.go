// Package checkup checks an installation step by step, as docs/install.md builds it: Nomad, Consul,
// GPU nodes, controller, gateway, models. It finds the first step that is missing and says what to
// do. It changes nothing; rights are tried by requests that have no effect.
package checkup

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"

	"remuda/controller/api"
	"remuda/device-plugin/doctor"
)

// Config says where to look.
type Config struct {
	Nomad  *nomadapi.Config
	Consul *consulapi.Config
	// Controllers are the URLs of the controller's servers.
	Controllers []string
	// Client asks any of them.
	Client *api.Client
	// Gateway is the URL of a gateway, empty if only its reports are checked.
	Gateway string
	// Version is that of this program.
	Version string
	// Now is the clock that those of the servers are compared with.
	Now func() time.Time
}

const (
	// patience is how long one request may take.
	patience = 10 * time.Second
	// maxSkew is how far clocks may differ. The servers' Date has whole seconds.
	maxSkew = 3 * time.Second
	// renewal is how long before its end a certificate should be renewed.
	renewal = 30 * 24 * time.Hour
)

// round is one run.
type round struct {
	cfg      Config
	ctx      context.Context
	findings []doctor.Finding
	// gpuNodes are the nodes with seats as Nomad lists them, by ID; the values are their names.
	gpuNodes map[string]string
}

// Run checks every step, in the order in which one depends on another.
func Run(ctx context.Context, cfg Config) []doctor.Finding {
	r := &round{cfg: cfg, ctx: ctx, gpuNodes: map[string]string{}}
	if nomad, err := nomadapi.NewClient(cfg.Nomad); err != nil {
		r.problem("Nomad", err.Error(), "correct NOMAD_ADDR")
	} else if r.checkNomad(nomad) {
		r.checkNodes(nomad)
		r.checkServices(nomad)
	}
	r.checkConsul()
	if r.checkController() {
		r.checkServers()
		r.checkGateways()
		r.checkModels()
	}
	return r.findings
}

// Next is what to do next: about the first problem, else the first warning, else the first note. It is
// empty if nothing is left to do.
func Next(findings []doctor.Finding) string {
	for _, status := range []doctor.Status{doctor.Problem, doctor.Warning, doctor.Note} {
		for _, f := range findings {
			if f.Status == status && f.Do != "" {
				return f.Do
			}
		}
	}
	return ""
}

func (r *round) add(check string, status doctor.Status, found, do string) {
	r.findings = append(r.findings, doctor.Finding{Check: check, Status: status, Found: found, Do: do})
}

func (r *round) ok(check, found string)          { r.add(check, doctor.OK, found, "") }
func (r *round) note(check, found, do string)    { r.add(check, doctor.Note, found, do) }
func (r *round) warn(check, found, do string)    { r.add(check, doctor.Warning, found, do) }
func (r *round) problem(check, found, do string) { r.add(check, doctor.Problem, found, do) }

// checkServer checks that a server answers, its clock and its certificate. All of Nomad, Consul and
// the controller answer at this path without a token.
func (r *round) checkServer(name, url string) error {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/v1/status/leader", nil)
	if err != nil {
		return err
	}
	// Whether the certificate is trusted is checked by the clients; here its end is read.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	begin := r.cfg.Now()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "remote error" { // The server demands a client's certificate.
			return nil
		}
		return err
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%s is answered with %s: another program listens there", req.URL, resp.Status)
	}
	if resp.TLS != nil && len(resp.TLS.PeerCertificates) > 0 {
		end := resp.TLS.PeerCertificates[0].NotAfter
		switch left := end.Sub(r.cfg.Now()); {
		case left <= 0:
			r.problem(name+" certificate", "it ended on "+end.Format(time.DateOnly), "renew it")
		case left < renewal:
			r.warn(name+" certificate", fmt.Sprintf("it ends on %s, in %d days", end.Format(time.DateOnly), int(left.Hours()/24)), "renew it")
		default:
			r.ok(name+" certificate", "valid until "+end.Format(time.DateOnly))
		}
	}
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return nil
	}
	end := r.cfg.Now()
	skew := time.Duration(0)
	if at.Before(begin) {
		skew = begin.Sub(at)
	} else if at.After(end) {
		skew = at.Sub(end)
	}
	if skew > maxSkew {
		r.warn(name+" clock", fmt.Sprintf("it differs from this machine's by %s", skew.Round(time.Second)), "run a time service (chrony, systemd-timesyncd) on all machines")
	} else {
		r.ok(name+" clock", "as this machine's")
	}
	return nil
}

// older reports whether a version is older than a minimum such as 1.11.1.
func older(version string, minimum [3]int) bool {
	var v [3]int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.%d", &v[0], &v[1], &v[2]); n < 3 {
		return false
	}
	for i := range v {
		if c := cmp.Compare(v[i], minimum[i]); c != 0 {
			return c < 0
		}
	}
	return false
}

// count writes a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
