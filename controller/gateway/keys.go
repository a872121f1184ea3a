package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"remuda/controller/gateway/queue"
	"remuda/internal/hclconfig"
)

// Keys are the API keys of clients: the bearer token of a request says for whom it is.
// Each has a fair share of every model, and limits.
type Keys struct {
	// Required: a request without one of the Named keys is refused with 401. Else any
	// key is taken, and none is as well.
	Required bool
	// Default are the limits of each key that is not Named, and of the requests without a
	// key, all together.
	Default queue.KeyLimit
	// Named are the keys that are known.
	Named []Key
}

// Key is a known API key.
type Key struct {
	// Name is what logs call it.
	Name string
	// SHA256 is the hash of the key in hex: the key itself needs not be in the file.
	SHA256 string
	queue.KeyLimit
}

// keyAnonymous is the name of requests without a key.
const keyAnonymous = "anonymous"

// DefaultKeyLimit is a key without limits, of a middle priority.
func DefaultKeyLimit() queue.KeyLimit {
	return queue.KeyLimit{Weight: 1, Priority: 5, MaxPriority: 5}
}

const keyBlock = "key"

// keyBlocks are the blocks key "NAME" { … }. What one does not say is as in keys { … }
// where that stands before it, else as in DefaultKeyLimit.
func keyBlocks() hclconfig.Labelled[Config] {
	return hclconfig.Labelled[Config]{
		Type: keyBlock,
		Open: func(c *Config, name string) {
			c.Keys.Named = append(slices.Clone(c.Keys.Named), Key{Name: name, KeyLimit: c.Keys.Default})
		},
		Settings: func(name string) []setting {
			of := func(c *Config) *Key {
				return &c.Keys.Named[slices.IndexFunc(c.Keys.Named, func(k Key) bool { return k.Name == name })]
			}
			token := func(c *Config, v cty.Value) error {
				var text string
				if err := hclconfig.Text(func(s *string) *string { return s })(&text, v); err != nil {
					return err
				}
				if text == "" {
					return fmt.Errorf("is empty: must be the key that clients send")
				}
				of(c).SHA256 = hashKey(text)
				return nil
			}
			return append(limitSettings("", func(c *Config) *queue.KeyLimit { return &of(c).KeyLimit }),
				setting{Name: "sha256", Set: text(func(c *Config) *string { return &of(c).SHA256 })},
				setting{Name: "token", Set: token},
			)
		},
	}
}

func limitSettings(block string, at func(*Config) *queue.KeyLimit) []setting {
	return []setting{
		{Block: block, Name: "weight", Set: hclconfig.Float(func(c *Config) *float64 { return &at(c).Weight })},
		{Block: block, Name: "priority", Set: hclconfig.Count(func(c *Config) *int { return &at(c).Priority })},
		{Block: block, Name: "max_priority", Set: hclconfig.Count(func(c *Config) *int { return &at(c).MaxPriority })},
		{Block: block, Name: "concurrency", Set: hclconfig.Count(func(c *Config) *int { return &at(c).Concurrency })},
		{Block: block, Name: "rate", Set: hclconfig.Float(func(c *Config) *float64 { return &at(c).Rate })},
		{Block: block, Name: "burst", Set: hclconfig.Count(func(c *Config) *int { return &at(c).Burst })},
	}
}

func (k *Keys) problems() []hclconfig.Problem {
	var out []hclconfig.Problem
	check := func(prefix string, l queue.KeyLimit) bool {
		_, err := queue.NewKeys(l, nil)
		if err != nil {
			out = append(out, hclconfig.Problem{Field: prefix, Text: "is invalid: " + err.Error()})
		}
		return err == nil
	}
	sound := check("keys", k.Default)
	hashes := map[string]string{}
	for _, key := range k.Named {
		field := fmt.Sprintf("%s %q", keyBlock, key.Name)
		if sound { // else they have that fault from there
			check(field, key.KeyLimit)
		}
		raw, err := hex.DecodeString(key.SHA256)
		switch hash := strings.ToLower(key.SHA256); {
		case key.Name == keyAnonymous:
			out = append(out, hclconfig.Problem{Field: field, Text: "has the name that is reserved for requests without a key: use another name"})
		case key.SHA256 == "":
			out = append(out, hclconfig.Problem{Field: hclconfig.LabelledField(keyBlock, key.Name, "token"),
				Text: "is missing: must be the key that clients send, or set sha256 to its SHA-256", Blame: []string{field}})
		case err != nil || len(raw) != sha256.Size:
			out = append(out, hclconfig.Problem{Field: hclconfig.LabelledField(keyBlock, key.Name, "sha256"),
				Text:  fmt.Sprintf("is %q: must be the SHA-256 of the key as 64 hex digits, or set token to the key itself", key.SHA256),
				Blame: []string{hclconfig.LabelledField(keyBlock, key.Name, "token")}})
		case hashes[hash] != "":
			out = append(out, hclconfig.Problem{Field: hclconfig.LabelledField(keyBlock, key.Name, "sha256"),
				Text:  fmt.Sprintf("is a duplicate of key %q: each key must be different", hashes[hash]),
				Blame: []string{hclconfig.LabelledField(keyBlock, key.Name, "token")}})
		default:
			hashes[hash] = key.Name
		}
	}
	if k.Required && len(k.Named) == 0 {
		out = append(out, hclconfig.Problem{Field: "keys.required", Text: `is true and no key is configured, so every request would be rejected: add a block key "NAME" { … }`})
	}
	return out
}

func hashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// keyring finds out whose a request is.
type keyring struct {
	required bool
	names    map[[sha256.Size]byte]string
}

func newKeyring(k Keys) *keyring {
	r := &keyring{required: k.Required, names: map[[sha256.Size]byte]string{}}
	for _, key := range k.Named {
		raw, _ := hex.DecodeString(key.SHA256) // it was checked
		r.names[[sha256.Size]byte(raw)] = key.Name
	}
	return r
}

// limits returns the limits of each named key.
func (k *Keys) limits() map[string]queue.KeyLimit {
	out := make(map[string]queue.KeyLimit, len(k.Named))
	for _, key := range k.Named {
		out[key.Name] = key.KeyLimit
	}
	return out
}

// name is the name of a request's key: that of a known one, the beginning of the hash of
// another, "anonymous" without one. ours: it is a known one, which is of no use to engines.
func (r *keyring) name(h http.Header) (name string, ours bool, e *apiError) {
	auth := h.Get("Authorization")
	scheme, key, _ := strings.Cut(auth, " ")
	key = strings.TrimSpace(key)
	if key == "" || !strings.EqualFold(scheme, "Bearer") {
		if r.required {
			return "", false, errNoKey()
		}
		return keyAnonymous, false, nil
	}
	sum := sha256.Sum256([]byte(key))
	if name, ok := r.names[sum]; ok {
		return name, true, nil
	}
	if r.required {
		return "", false, errBadKey()
	}
	return "key-" + hex.EncodeToString(sum[:6]), false, nil
}

func errNoKey() *apiError {
	return &apiError{status: http.StatusUnauthorized, typ: typeRequest, code: "missing_api_key", close: true,
		message: `the request has no API key; send one as "Authorization: Bearer KEY"`}
}

func errBadKey() *apiError {
	return &apiError{status: http.StatusUnauthorized, typ: typeRequest, code: "invalid_api_key", close: true,
		message: "invalid API key; ask the gateway's operator for one"}
}
