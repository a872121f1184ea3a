package checkup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-cleanhttp"

	"remuda/internal/replica"
)

// right is one of Consul's, as its own web interface asks for it.
type right struct {
	Resource, Access, Segment string
	Allow                     bool `json:",omitempty"`
}

// checkConsul checks the agent, its version, and the rights of CONSUL_HTTP_TOKEN.
func (r *round) checkConsul() {
	c, err := consulapi.NewClient(r.cfg.Consul)
	if err != nil {
		r.problem("Consul", err.Error(), "correct CONSUL_HTTP_ADDR")
		return
	}
	address := r.cfg.Consul.Address
	if !strings.Contains(address, "://") {
		scheme := r.cfg.Consul.Scheme
		if scheme == "" {
			scheme = "http"
		}
		address = scheme + "://" + address
	}
	if strings.HasPrefix(address, "http") {
		if err := r.checkServer("Consul", address); err != nil {
			r.problem("Consul", fmt.Sprintf("no answer from %s: %v", address, err), "set CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN and CONSUL_CACERT as for the consul command")
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	q := (&consulapi.QueryOptions{}).WithContext(ctx)
	var self map[string]map[string]any
	if _, err := c.Raw().Query("/v1/agent/self", &self, q); err != nil {
		r.warn("Consul", "the version is unknown: "+err.Error(), "give the token of CONSUL_HTTP_TOKEN the right agent_prefix \"\" { policy = \"read\" }, or read `consul version`: 1.15 or later")
	} else if version, _ := self["Config"]["Version"].(string); older(version, [3]int{1, 15, 0}) {
		r.problem("Consul", "version "+version+" is too old", "upgrade Consul to 1.15 or later")
	} else {
		r.ok("Consul", "version "+version)
	}
	asked := []right{
		{Resource: "service", Access: "read", Segment: replica.ServiceName}, {Resource: "node", Access: "read", Segment: "any"},
		{Resource: "service", Access: "write", Segment: replica.ServiceName},
	}
	answered, err := r.authorize(ctx, address, asked)
	if err != nil {
		r.note("Consul rights", "cannot be tried: "+err.Error(), "")
		return
	}
	var missing []string
	for _, a := range answered {
		if !a.Allow {
			missing = append(missing, fmt.Sprintf("%s %s:%s", a.Resource, a.Segment, a.Access))
		}
	}
	if len(missing) > 0 {
		r.problem("Consul rights", "the token lacks "+strings.Join(missing, ", "), "make tokens with the policies in jobs/acl, and set one in CONSUL_HTTP_TOKEN")
		return
	}
	r.ok("Consul rights", "the token may find nodes and services, and register engines")
}

// authorize asks Consul which of some rights the token has. Consul's client has no POST.
func (r *round) authorize(ctx context.Context, address string, asked []right) (answered []right, err error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/v1/internal/acl/authorize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if r.cfg.Consul.Token != "" {
		req.Header.Set("X-Consul-Token", r.cfg.Consul.Token)
	}
	client, err := consulapi.NewHttpClient(cleanhttp.DefaultTransport(), r.cfg.Consul.TLSConfig)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s is answered with %s", req.URL, resp.Status)
	}
	return answered, json.NewDecoder(resp.Body).Decode(&answered)
}
