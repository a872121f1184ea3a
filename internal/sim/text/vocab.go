package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// words is the model's vocabulary in lower case. A few are not ASCII, so that
// whoever cuts a stream inside a character is caught. None is longer than
// what the tokenizer keeps in one piece.
var words = []string{
	"a", "above", "across", "after", "again", "air", "all", "along", "always", "and",
	"answer", "any", "arroyo", "ash", "at", "autumn", "away", "back", "barn", "bay",
	"before", "behind", "bell", "below", "beside", "between", "beyond", "blanket", "blue", "boots",
	"bridle", "bright", "brings", "brown", "brush", "by", "café", "calls", "calm", "camp",
	"canyon", "carries", "cattle", "cinch", "clear", "cliff", "cloud", "coffee", "cold", "colt",
	"comes", "corral", "cottonwood", "cowhand", "coyote", "creek", "crew", "crosses", "dark", "dawn",
	"day", "deep", "desert", "distant", "down", "drifts", "drinks", "drover", "dry", "dusk",
	"dust", "each", "early", "east", "empty", "evening", "every", "far", "fast", "fence",
	"field", "finds", "fire", "first", "foal", "follows", "for", "fording", "fresh", "from",
	"frost", "gate", "gathers", "gentle", "gold", "grass", "gray", "grazes", "green", "ground",
	"grulla", "halter", "hay", "heat", "herd", "high", "hill", "hoof", "horse", "hot",
	"in", "into", "iron", "jacal", "keeps", "lantern", "lariat", "last", "late", "leads",
	"leather", "light", "listens", "little", "lone", "long", "looks", "low", "mane", "mare",
	"meadow", "mesa", "mile", "moon", "more", "morning", "mountain", "mustang", "naïve", "near",
	"never", "night", "noon", "north", "of", "old", "on", "one", "open", "out",
	"over", "palomino", "pass", "past", "patient", "piñon", "plain", "pony", "prairie", "quiet",
	"rain", "ranch", "range", "red", "reins", "remuda", "rests", "returns", "rides", "ridge",
	"rio", "rises", "river", "road", "roan", "rope", "runs", "saddle", "sage", "sand",
	"señor", "settles", "shade", "shadow", "shy", "silver", "sings", "sky", "sleeps", "slow",
	"small", "smoke", "snow", "soft", "sorrel", "south", "spring", "spur", "stable", "stallion",
	"stands", "star", "steady", "still", "stirrup", "stone", "storm", "stream", "strong", "summer",
	"sun", "swift", "tack", "tall", "the", "then", "thunder", "till", "to", "together",
	"trail", "turns", "twilight", "two", "under", "until", "up", "valley", "vaquero", "wagon",
	"waits", "wakes", "walks", "warm", "watches", "water", "weary", "west", "while", "white",
	"wide", "wild", "wind", "winter", "with", "wrangler", "yard", "young", "東京", "🐎",
}

// terminators end a sentence; the model may stop only after one of them.
var terminators = []string{".", ".", ".", ".", "!", "?"}

// Token identifiers. 0 to 255 stand for single bytes, then come the words, then
// two ranges that hold two and three bytes each, so that any text has a short,
// reversible encoding and every identifier below VocabSize can be decoded.
const (
	wordBase    = 256
	pairBase    = 4096
	tripleBase  = pairBase + 1<<16
	eosToken    = wordBase
	firstWordID = wordBase + 1

	// VocabSize is one more than the highest token identifier.
	VocabSize = tripleBase + 1<<24
)

var (
	vocabText []string          // by identifier minus firstWordID
	vocabID   map[string]uint32 // by text

	// The four ways in which a word may follow the text so far, each by the
	// word's index in words.
	bareLower, bareUpper, spaceLower, spaceUpper []string
)

func init() {
	vocabID = map[string]uint32{}
	add := func(s string) string {
		if _, ok := vocabID[s]; !ok {
			vocabID[s] = uint32(firstWordID + len(vocabText))
			vocabText = append(vocabText, s)
		}
		return s
	}
	for _, w := range words {
		up := capitalize(w)
		bareLower = append(bareLower, add(w))
		bareUpper = append(bareUpper, add(up))
		spaceLower = append(spaceLower, add(" "+w))
		spaceUpper = append(spaceUpper, add(" "+up))
	}
	for _, s := range []string{imStart, imEnd} {
		add(s)
	}
	if firstWordID+len(vocabText) > pairBase {
		panic("text: the vocabulary no longer fits below the byte pairs")
	}
}

func capitalize(w string) string {
	r, n := utf8.DecodeRuneInString(w)
	var b strings.Builder
	b.WriteRune(unicode.ToUpper(r))
	b.WriteString(w[n:])
	return b.String()
}
