package prom

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/hashicorp/go-cleanhttp"

	"remuda/autoscaler-plugin/enginemetrics"
)

// client sends instant queries.
type client struct {
	url  *url.URL
	http *http.Client
	cfg  Config
}

// endpoint is where queries go.
func endpoint(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("address is %q: must be a URL without a user, a query and a fragment, such as \"http://prometheus.example:9090\"", u.Redacted())
	}
	return u.JoinPath("api", "v1", "query"), nil
}

func newClient(cfg Config) (*client, error) {
	u, err := endpoint(cfg.Address)
	if err != nil {
		return nil, err
	}
	c := &client{url: u, http: cfg.HTTPClient, cfg: cfg}
	if c.http != nil {
		return c, nil
	}
	transport := cleanhttp.DefaultPooledTransport()
	transport.MaxIdleConnsPerHost = 4 * max(cfg.Concurrency, 1)
	if cfg.CACert != "" {
		pem, err := os.ReadFile(cfg.CACert)
		if err != nil {
			return nil, fmt.Errorf("CA certificate: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA certificate: %s contains no certificate", cfg.CACert)
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	// Credentials are not for whoever a redirect names.
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// query asks one instant query.
func (c *client) query(ctx context.Context, text string) (*enginemetrics.Vector, error) {
	u := *c.url
	u.RawQuery = url.Values{"query": {text}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	for name, value := range c.cfg.Headers {
		req.Header.Set(name, value)
	}
	switch {
	case c.cfg.Token != "":
		req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	case c.cfg.User != "":
		req.SetBasicAuth(c.cfg.User, c.cfg.Password)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // The URL has the whole query in it.
		}
		return nil, fmt.Errorf("%s: %w", c.url.Host, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(c.cfg.MaxBytes)+1))
	if err != nil {
		return nil, fmt.Errorf("%s: read the response: %w", c.url.Host, err)
	}
	v, err := enginemetrics.DecodeVector(body, enginemetrics.Options{MaxBytes: c.cfg.MaxBytes})
	var no *enginemetrics.QueryError
	if err != nil && resp.StatusCode != http.StatusOK && !errors.As(err, &no) {
		// Not from Prometheus: a proxy, or another program at that address.
		const clip = 200
		return nil, fmt.Errorf("%s is not a Prometheus server: it responded %s: %q", c.url.Host, resp.Status, strings.ToValidUTF8(string(body[:min(len(body), clip)]), "?"))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: query %s: %w", c.url.Host, text, err)
	}
	return &v, nil
}

// fetch asks all queries of one set of series, at once.
func (s *Source) fetch(ctx context.Context, a asked) (enginemetrics.Reports, error) {
	dialect, err := enginemetrics.Lookup(a.Dialect)
	if err != nil {
		return enginemetrics.Reports{}, err
	}
	sel := enginemetrics.Selector{Model: a.Shown, ModelLabel: s.cfg.ModelLabel, Match: a.Match, Window: s.cfg.Window}
	queries, err := dialect.Queries(sel)
	if err != nil {
		return enginemetrics.Reports{}, err
	}
	var answers enginemetrics.Answers
	var running sync.WaitGroup
	var errs [4]error
	for i, one := range [...]struct {
		text string
		into **enginemetrics.Vector
	}{{queries.KVUsage, &answers.KVUsage}, {queries.Waiting, &answers.Waiting}, {queries.Running, &answers.Running}, {queries.Seen, &answers.Seen}} {
		if one.text != "" {
			running.Go(func() { *one.into, errs[i] = s.api.query(ctx, one.text) })
		}
	}
	running.Wait()
	if err := cmp.Or(errs[:]...); err != nil { // one will do: they fail alike
		return enginemetrics.Reports{}, err
	}
	if queries.Models != "" && empty(answers) {
		if answers.Models, err = s.api.query(ctx, queries.Models); err != nil {
			return enginemetrics.Reports{}, err
		}
	}
	return enginemetrics.ReadAnswers(answers, enginemetrics.ReportOptions{Dialect: dialect, Model: a.Shown, ModelLabel: s.cfg.ModelLabel,
		ReplicaLabels: s.cfg.ReplicaLabels, StaleAfter: s.cfg.StaleAfter})
}

// empty tells that no series came.
func empty(a enginemetrics.Answers) bool {
	for _, v := range []*enginemetrics.Vector{a.KVUsage, a.Waiting, a.Running, a.Seen} {
		if v != nil && len(v.Series) > 0 {
			return false
		}
	}
	return true
}
