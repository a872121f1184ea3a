package checkup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-cleanhttp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"remuda/jobs"
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
		r.note("Consul", "the version is unknown: "+err.Error(), "give the token of CONSUL_HTTP_TOKEN the right agent_prefix \"\" { policy = \"read\" }, or read `consul version`: 1.15 or later")
	} else if version, _ := self["Config"]["Version"].(string); older(version, [3]int{1, 15, 0}) {
		r.problem("Consul", "version "+version+" is too old", "upgrade Consul to 1.15 or later")
	} else {
		r.ok("Consul", "version "+version)
	}
	needs, err := policies()
	if err != nil {
		r.problem("Consul rights", err.Error(), "")
		return
	}
	var asked []right
	for _, n := range needs {
		asked = append(asked, n.rights...)
	}
	answered, err := r.authorize(ctx, address, asked)
	switch {
	case errors.Is(err, errNoACLs):
		r.note("Consul rights", "ACLs are off: everybody who reaches Consul may register and remove engines", "")
		return
	case err != nil:
		r.warn("Consul rights", "cannot be tried: "+err.Error(), "correct CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN")
		return
	}
	var enough, missing []string
	for _, n := range needs {
		i := slices.IndexFunc(n.rights, func(want right) bool {
			want.Allow = true
			return !slices.Contains(answered, want)
		})
		if i < 0 {
			enough = append(enough, n.who)
		} else {
			missing = append(missing, fmt.Sprintf("%s of %s for the %s", n.rights[i].Access, strings.TrimSpace(n.rights[i].Resource+" "+n.rights[i].Segment), n.who))
		}
	}
	if len(enough) == 0 {
		r.problem("Consul rights", "the token is enough for nothing: it lacks "+strings.Join(missing, ", "), "make tokens with the policies in jobs/acl, and set one in CONSUL_HTTP_TOKEN to try it")
		return
	}
	r.ok("Consul rights", "the token has what is needed by "+strings.Join(enough, ", "))
}

// need is what a policy in jobs/acl grants.
type need struct {
	who    string
	rights []right
}

// policies reads the policies in jobs/acl. A rule for a prefix is tried on a name that begins with it.
func policies() ([]need, error) {
	names, err := fs.Glob(jobs.ConsulPolicies, "acl/*.consul.hcl")
	if err != nil {
		return nil, err
	}
	var all []need
	for _, name := range names {
		text, err := fs.ReadFile(jobs.ConsulPolicies, name)
		if err != nil {
			return nil, err
		}
		file, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
		if diags.HasErrors() {
			return nil, diags
		}
		n := need{who: strings.TrimSuffix(path.Base(name), ".consul.hcl")}
		for _, b := range file.Body.(*hclsyntax.Body).Blocks {
			access, diags := b.Body.Attributes["policy"].Expr.Value(nil)
			if diags.HasErrors() {
				return nil, diags
			}
			resource, prefix := strings.CutSuffix(b.Type, "_prefix")
			segment := b.Labels[0]
			if prefix {
				segment += "remuda"
			}
			n.rights = append(n.rights, right{Resource: resource, Access: access.AsString(), Segment: segment})
		}
		all = append(all, n)
	}
	return all, nil
}

// errNoACLs is returned by authorize if Consul has no ACLs.
var errNoACLs = errors.New("ACL support disabled")

// authorize asks Consul which of the rights the token has. Its client library has no such call, and
// sends no POST.
func (r *round) authorize(ctx context.Context, address string, asked []right) ([]right, error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/v1/internal/acl/authorize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(address, "http") {
		return nil, fmt.Errorf("%s is not a URL with http or https", address)
	}
	token := r.cfg.Consul.Token
	if file := r.cfg.Consul.TokenFile; token == "" && file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		token = strings.TrimSpace(string(text))
	}
	req.Header.Set("X-Consul-Token", token)
	client, err := consulapi.NewHttpClient(cleanhttp.DefaultTransport(), r.cfg.Consul.TLSConfig)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return nil, err
	case strings.Contains(string(text), errNoACLs.Error()):
		return nil, errNoACLs
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	var answered []right
	err = json.Unmarshal(text, &answered)
	return answered, err
}
