/* Search results of the site: a section whose heading is the query comes first. */
var Scorer = {
  score: ([, , , , score, , kind]) => (kind === "title" ? 2 * score : score),

  /* The values of Sphinx. */
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
