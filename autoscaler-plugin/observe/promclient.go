package observe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/hashicorp/go-cleanhttp"
	"github.com/prometheus/client_golang/api"

	"remuda/autoscaler-plugin/enginemetrics"
)

// promClient sends instant queries through Prometheus' own client.
type promClient struct {
	api       api.Client
	host      string
	transport http.RoundTripper
}

// checkAddress rejects an address that no server can have.
func checkAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return fmt.Errorf("address: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return fmt.Errorf("address is %q: must be a URL without a user, a query and a fragment, such as \"http://prometheus.example:9090\"", u.Redacted())
	}
	return nil
}

func newPromClient(cfg PrometheusConfig) (*promClient, error) {
	transport := cleanhttp.DefaultPooledTransport()
	transport.MaxIdleConnsPerHost = 16 // a model is four queries at once
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
	headers := maps.Clone(cfg.Headers)
	if headers == nil {
		headers = map[string]string{}
	}
	switch {
	case cfg.Token != "":
		headers["Authorization"] = "Bearer " + cfg.Token
	case cfg.User != "":
		headers["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(cfg.User+":"+cfg.Password))
	}
	c, err := api.NewClient(api.Config{Address: cfg.Address, Client: &http.Client{
		Transport: &promTransport{RoundTripper: transport, headers: headers},
		// Credentials are not for the server that a redirect names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return nil, err
	}
	u := c.URL("", nil)
	return &promClient{api: c, host: u.Host, transport: transport}, nil
}

// close drops idle connections.
func (c *promClient) close() {
	if t, ok := c.transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// promTransport adds headers to requests, and bounds the size of answers.
type promTransport struct {
	http.RoundTripper
	headers map[string]string
}

// RoundTrip implements http.RoundTripper.
func (t *promTransport) RoundTrip(rq *http.Request) (*http.Response, error) {
	rq = rq.Clone(rq.Context())
	for name, value := range t.headers {
		rq.Header.Set(name, value)
	}
	resp, err := t.RoundTripper.RoundTrip(rq)
	if err == nil {
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: enginemetrics.MaxBytes}
	}
	return resp, err
}

// boundedBody fails where a body is longer than it may be.
type boundedBody struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer is %w", enginemetrics.ErrTooLarge)
	}
	return n, err
}

// query asks one instant query.
func (c *promClient) query(ctx context.Context, text string) (*enginemetrics.Vector, error) {
	u := c.api.URL("/api/v1/query", nil)
	u.RawQuery = url.Values{"query": {text}}.Encode()
	rq, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	rq.Header.Set("Accept", "application/json")
	resp, body, err := c.api.Do(ctx, rq) //nolint:bodyclose // the client reads and closes it
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // The URL has the whole query in it.
		}
		return nil, fmt.Errorf("%s: %w", c.host, err)
	}
	v, err := enginemetrics.DecodeVector(body)
	var no *enginemetrics.QueryError
	if err != nil && resp.StatusCode != http.StatusOK && !errors.As(err, &no) {
		// Not from Prometheus: a proxy, or another program at that address.
		const most = 200
		return nil, fmt.Errorf("%s is not a Prometheus server: it responded %s: %q", c.host, resp.Status, strings.ToValidUTF8(string(body[:min(len(body), most)]), "?"))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: query %s: %w", c.host, text, err)
	}
	return &v, nil
}
