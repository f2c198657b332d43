// Before anything is drawn: the theme that Airflow's own pages have, else the system's.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
