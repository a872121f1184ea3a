// Package consul is remuda's only door to Consul: it registers engines and
// daemons and watches engines. Registration and watching survive a Consul that is down, slow
// or restarted; neither ever asks Consul for permission to do something.
package consul

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/hashicorp/consul/api"
	cleanhttp "github.com/hashicorp/go-cleanhttp"
)

// Address says how to reach a Consul agent.
type Address struct {
	// Addr is "host:port" or a URL. Empty means CONSUL_HTTP_ADDR, or 127.0.0.1:8500 without
	// that; in a task of Nomad one of them must be set, as the agent at Consul's usual port may
	// be of another cluster.
	Addr string
	// Token is the ACL token; empty means CONSUL_HTTP_TOKEN.
	Token string
}

// String is the address for messages.
func (a Address) String() string {
	return cmp.Or(a.Addr, os.Getenv("CONSUL_HTTP_ADDR"), "127.0.0.1:8500")
}

// newClient builds a client on a transport of its own, so that closing its
// idle connections at the end touches nobody else's.
func newClient(a Address) (*api.Client, *http.Transport, error) {
	cfg := api.DefaultConfig()
	transport := cleanhttp.DefaultPooledTransport()
	cfg.Transport = transport
	if a.Addr == "" && os.Getenv("CONSUL_HTTP_ADDR") == "" && os.Getenv("NOMAD_ALLOC_ID") != "" {
		return nil, nil, errors.New("no address of a Consul agent: set the job's variable consul, or CONSUL_HTTP_ADDR of the Nomad client, to the node's agent, such as 127.0.0.1:8500")
	}
	if a.Addr != "" {
		if err := checkAddr(a.Addr); err != nil {
			return nil, nil, err
		}
		cfg.Address = a.Addr
		if scheme, rest, ok := strings.Cut(a.Addr, "://"); ok && (scheme == "http" || scheme == "https") {
			cfg.Scheme, cfg.Address = scheme, rest
		}
	}
	if a.Token != "" {
		cfg.Token = a.Token
	}
	client, err := api.NewClient(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("consul address %q: %w", a.Addr, err)
	}
	return client, transport, nil
}

func checkAddr(addr string) error {
	raw := addr
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return fmt.Errorf("consul address %q: must be host:port or http(s)://host:port", addr)
	}
	return nil
}

// refused tells whether Consul itself said no (a 4xx answer), as opposed to
// not being there.
func refused(err error) bool {
	var status api.StatusError
	return errors.As(err, &status) && status.Code >= 400 && status.Code < 500
}

// unknownCheck tells whether Consul no longer knows the check or service that
// was named, as after it lost its state.
func unknownCheck(err error) bool {
	var status api.StatusError
	return errors.As(err, &status) && (status.Code == http.StatusNotFound ||
		status.Code == http.StatusInternalServerError && strings.Contains(status.Body, "nknown check"))
}
